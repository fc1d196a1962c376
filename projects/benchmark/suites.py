"""Define the suites of the benchmark: functions that yield cases at full size or, if `quick`, at tiny size."""

from collections.abc import Callable, Iterator
from itertools import chain

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor

from mmairl.analysis.cka import stage_cka
from mmairl.checkpoints.normrescale import normrescale
from mmairl.checkpoints.norms import weight_norms
from mmairl.engine.optim.head_sgd import HeadSGD
from mmairl.evaluation.neighbors import nearest
from mmairl.models.classifier import Classifier
from projects.benchmark.augment import augment
from projects.benchmark.crops import crops
from projects.benchmark.loader import loader, many_files
from projects.benchmark.loss import loss
from projects.benchmark.optim import optim
from projects.benchmark.saving import saving
from projects.benchmark.step import step
from projects.benchmark.teacher import teacher
from projects.benchmark.timing import Case


def knn(device: str, quick: bool) -> Iterator[Case]:
    """Compare the k-NN search, which works in blocks, with a search in the full similarity matrix."""
    bank, queries, width = (2000, 100, 64) if quick else (200_000, 4096, 2048)
    generator = torch.Generator().manual_seed(0)
    x, q = (
        torch.randn(bank, width, generator=generator),
        torch.randn(queries, width, generator=generator),
    )

    def whole() -> Tensor:
        return (F.normalize(q.to(device)) @ F.normalize(x.to(device)).T).topk(200).values.cpu()

    def check(ours: Tensor, theirs: Tensor) -> None:
        # mmairl's search computes some cosines in float64 and returns float64. The full matrix is in float32.
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0, check_dtype=False)

    name = f'k-NN, {queries} images against {bank} x {width}, k = 200'
    yield Case(
        name,
        'full similarity matrix',
        lambda: nearest(q, x, 200, device)[0],
        whole,
        check,
        queries,
        memory=True,
    )


def linear(device: str, quick: bool) -> Iterator[Case]:
    """Compare a step that trains 32 heads with one step of a single head, which is a lower bound, and with 32 such steps."""
    depth, size, batch, classes, heads = (18, 32, 4, 10, 4) if quick else (50, 224, 16, 1000, 32)
    images = [torch.randn(batch, 3, size, size).to(device, memory_format=torch.channels_last)]
    labels = dict(label=torch.randint(classes, (batch,), device=device))

    def step(count: int) -> Callable[[], object]:
        backbone = dict(type='mmpretrain.ResNet', depth=depth)
        model = Classifier(backbone, 2048 if depth == 50 else 512, classes, count, frozen=True)
        model.to(device, memory_format=torch.channels_last).train()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = HeadSGD(trained, lr=0.1, rates=[1.0] * count, decays=[0.0] * count)

        def one() -> None:
            optimizer.zero_grad()
            model(images, labels, mode='loss')['loss'].backward()
            optimizer.step()

        return one

    many, single = step(heads), step(1)
    name = f'linear step, ResNet-{depth} {size}, batch {batch}, {classes} classes, {heads} heads'
    yield Case(name, 'one head', many, single, images=batch, aim='>= 0.5 (less than 2 x one)')
    if not quick:
        heads_alone = [single] * heads
        yield Case(
            name,
            f'{heads} single steps',
            many,
            lambda: [one() for one in heads_alone],
            images=batch,
        )


def analysis(device: str, quick: bool) -> Iterator[Case]:
    """Compare CKA with the forward passes that it requires, and NormRescale and weight norms with plain loops."""
    make = torchvision.models.resnet18 if quick else torchvision.models.resnet50
    size, batch, count = (32, 8, 2) if quick else (224, 32, 2)
    torch.manual_seed(0)
    networks = [
        make(num_classes=2).to(device, memory_format=torch.channels_last).eval() for _ in range(2)
    ]
    batches = [
        torch.randn(batch, 3, size, size).to(device, memory_format=torch.channels_last)
        for _ in range(count)
    ]

    @torch.inference_mode()
    def forward() -> None:
        for images in batches:
            for network in networks:
                network(images)

    name = f'CKA of two {make.__name__}, all stages, {batch} images of {size} a batch'
    cka = lambda: stage_cka(*networks, batches)  # noqa: E731
    yield Case(
        name,
        'the forward passes alone',
        cka,
        forward,
        images=batch * count,
        aim='>= 0.77 (within 1.3 x)',
    )
    source, anchor = ({k: v.cpu() for k, v in network.state_dict().items()} for network in networks)

    def naive() -> dict[str, Tensor]:
        return {
            k: v / v.norm() * anchor[k].norm() if v.is_floating_point() and v.any() else v
            for k, v in source.items()
        }

    yield Case(
        f'NormRescale of {make.__name__}',
        'a plain loop',
        lambda: normrescale(source, anchor),
        naive,
    )
    loop = lambda: {k: v.double().norm().item() for k, v in source.items()}  # noqa: E731
    yield Case(
        f'weight norms of {make.__name__}', 'a plain loop', lambda: weight_norms(source), loop
    )


SUITES: dict[str, Callable[[str, bool], Iterator[Case]]] = dict(
    knn=knn,
    linear=linear,
    analysis=analysis,
    loss=loss,
    optim=optim,
    teacher=teacher,
    augment=augment,
    loader=loader,
    many_files=many_files,
    saving=saving,
    step=lambda device, quick: chain(step(device, quick), crops(device, quick)),
    crops=crops,
)
