"""Jobs that measure times: training steps of mmairl and other libraries, real runs, kernels and evaluation."""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
import torchvision
from PIL import Image
from torch import Tensor

from mmairl.config import load_config
from mmairl.data.datasets import ImageFolder
from mmairl.data.preprocess import ViewPreprocessor, float32_precision
from mmairl.engine import run as launch
from mmairl.evaluation.features import Extraction, Features, extract
from mmairl.evaluation.knn import knn_right
from mmairl.evaluation.logreg import logistic_regression
from mmairl.models.heads.info_nce import info_nce
from mmairl.models.norm import SyncBN, views_in_batch
from mmairl.registry import MODELS
from projects.benchmark.augment import photograph
from projects.benchmark.gpu_visit.correctness import FAST, seconds_of
from projects.benchmark.gpu_visit.schedule import Context, fork
from projects.benchmark.step import (
    ON_GPU,
    TINY,
    copy_weights,
    our_step,
    peers,
    random_batch,
    siamese,
)

COMPILED = dict(FAST, compile=True)
GRAPHS = dict(FAST, compile=dict(mode='reduce-overhead'))
# For each way to take a step: the value of the config key `fast`, and the batch size.
WAYS: dict[str, tuple[dict, int]] = {
    'fast': (FAST, 256),
    'fused norm': (dict(FAST, fused_norm=True), 256),
    'compile': (COMPILED, 256),
    'graphs': (GRAPHS, 256),
    'float32': (dict(precision='float32'), 256),
    'tf32': (dict(precision='tf32'), 256),
    'bfloat16 nchw': (dict(precision='bfloat16'), 256),
    'fast 64': (FAST, 64),
    'fast 512': (FAST, 512),
    'fast 1024': (FAST, 1024),
    'graphs 64': (GRAPHS, 64),
    'compile 512': (COMPILED, 512),
}
DRAWN = 6144  # number of JPEG files that are drawn for real runs
DRAWERS = 6


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def way(name: str, warm_up: bool = False) -> Callable[[Context], None]:
    """Return a job that times training steps of MoCo v2+ with the settings WAYS[name], or only compiles them if `warm_up`."""

    def work(context: Context) -> None:
        fast, batch = WAYS[name]
        if context.tiny:
            # In a rehearsal, all compiled ways have the same batch size, so that they share their kernels. The batch size is
            # not 1, because compiled batch norm fails for a batch of 1.
            batch = 4 if fast.get('compile') else batch // 64
        if context.choice == 'software' and fast.get('compile'):  # Triton requires a GPU
            fast = dict(fast, compile=dict(backend='aot_eager'))
        size = replace(TINY if context.tiny else ON_GPU, batch=batch)
        torch.backends.cudnn.benchmark = True  # configs/_base_/default_runtime.py sets this, too
        with float32_precision(fast.get('precision')):
            model = siamese(size, 'mocov2plus').to(context.device)
            step = our_step(model, random_batch(size, context.device), 'SGD', **fast)
            time_steps(context, step, batch, warm_up)

    return work


def time_steps(
    context: Context, step: Callable[[], object], images: int, warm_up: bool = False
) -> None:
    """Record speed, host time, memory and the costliest kernels of a step. If `warm_up`, record only the time of four steps."""
    start = time.perf_counter()
    step()
    synchronize()
    context.record(first_step_s=round(time.perf_counter() - start, 1))
    for _ in range(3):
        step()
    synchronize()
    if warm_up:
        context.record(warm_s=round(time.perf_counter() - start, 1))
        return
    on_gpu = context.device == 'cuda'
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    count = 1 if context.tiny else 8
    steps, hosts = [], []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(count):
            step()
        hosts.append((time.perf_counter() - start) / count)
        synchronize()
        steps.append((time.perf_counter() - start) / count)
    context.record(
        images_per_second=round(images / statistics.median(steps), 1),
        step_ms=round(1e3 * statistics.median(steps), 2),
        spread_ms=round(1e3 * (max(steps) - min(steps)), 2),
        host_ms=round(1e3 * statistics.median(hosts), 2),
        gigabytes=round(torch.cuda.max_memory_allocated() / 1e9, 2) if on_gpu else None,
    )
    profile(context, step)


def profile(context: Context, step: Callable[[], object]) -> None:
    """Record the time that the kernels of a step take, and the fractions of this time that the costliest kernels take."""
    with torch.profiler.profile() as recorded:
        step()
        synchronize()
    on_gpu = context.device == 'cuda'
    key = 'self_device_time_total' if on_gpu else 'self_cpu_time_total'
    kernels = [
        event
        for event in recorded.key_averages()
        # On a GPU, only kernels count, because the profiler also attributes their time to operators.
        if not on_gpu or event.device_type == torch.autograd.DeviceType.CUDA
    ]
    total = sum(getattr(event, key) for event in kernels) or 1
    costliest = sorted(kernels, key=lambda event: -getattr(event, key))[:12]
    context.record(
        busy_ms=round(total / 1e3, 2),
        launches=sum(event.count for event in kernels),
        kernels={event.key[:60]: round(getattr(event, key) / total, 3) for event in costliest},
    )


def supervised(context: Context) -> None:
    """Time training steps of torchvision's ResNet-50.

    With equally fast kernels, MoCo v2+ can process 3/8 as many images per second as this supervised training. If a backward
    pass costs as much as two forward passes, supervised training costs three forward passes per image. MoCo v2+ costs eight:
    for each of two views, three in the student and one in the teacher.
    """
    torch.backends.cudnn.benchmark = True
    batch, side = (4, 64) if context.tiny else (256, 224)
    network = torchvision.models.resnet18() if context.tiny else torchvision.models.resnet50()
    network.to(context.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9, fused=True)
    images = torch.randn(batch, 3, side, side, device=context.device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,), device=context.device)

    def step() -> None:
        with torch.autocast(context.device, torch.bfloat16):
            loss = F.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    time_steps(context, step, batch)


def other_libraries(context: Context) -> None:
    """Time steps of BYOL by mmairl and by another library in turn, with the same initial weights and the same batch."""
    torch.backends.cudnn.benchmark = True
    size = replace(TINY if context.tiny else ON_GPU, batch=4 if context.tiny else 256)
    batch = random_batch(size, context.device)
    bfloat16 = dict(channels_last=True, precision='bfloat16')
    ways = {
        'float32': (dict(precision='float32'), {}),
        'bfloat16, channels last': (bfloat16, dict(channels_last=True, amp=not context.tiny)),
    }
    for library, (make, take) in peers().items():
        for name, (ours, theirs) in ways.items():
            model, peer = siamese(size, 'byol').to(context.device), make(size).to(context.device)
            copy_weights(model, peer)
            steps = {'ours': our_step(model, batch, **ours), 'theirs': take(peer, batch, **theirs)}
            seconds = {side: [] for side in steps}
            for turn in range(4):  # the first turn is a warm-up
                for side, step in steps.items():
                    start = time.perf_counter()
                    for _ in range(1 if context.tiny else 4):
                        step()
                    synchronize()
                    if turn:
                        seconds[side].append(time.perf_counter() - start)
            ours, theirs = (statistics.median(seconds[side]) for side in ('ours', 'theirs'))
            per_second = size.batch * (1 if context.tiny else 4) / ours
            context.record(
                library=library,
                way=name,
                our_images_per_second=round(per_second, 1),
                ratio=round(theirs / ours, 2),
            )
            del model, peer, steps


def draw(context: Context) -> None:
    """Draw JPEG files as large as those of ImageNet, in several processes."""
    marker = context.scratch / 'drawn'
    if marker.exists():
        context.record(note='drawn by an earlier visit')
        return
    count, processes = (64, 1) if context.tiny else (DRAWN, DRAWERS)

    def draw_share(first: int) -> int:
        for number in range(first, count, processes):
            path = context.scratch / f'images/class{number % 8}/{number}.jpg'
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(photograph(number)).save(path, quality=90)
        return 0

    children = [fork(lambda first=first: draw_share(first)) for first in range(processes)]
    start = time.monotonic()

    codes = [os.waitpid(child, 0)[1] for child in children]
    if any(codes):
        raise AssertionError('an image could not be drawn; see the log')
    marker.touch()
    context.record(files=count, took=round(time.monotonic() - start, 1))


def real_run(config: str, workers: int) -> Callable[[Context], None]:
    """Return a job that trains a config on the files of `draw`, with the config's data loader."""

    def work(context: Context) -> None:
        cfg = load_config(config)
        options = {
            'train_dataloader.dataset.root': str(context.scratch / 'images'),
            'train_dataloader.num_workers': 1 if context.tiny else workers,
            'total_batch_size': 16 if context.tiny else 256,
            'train_cfg.max_epochs': 1 if context.tiny else 3,
            'work_dir': str(context.scratch / context.job.replace(' ', '_')),
            'default_hooks.logger.interval': 12,
            'default_hooks.checkpoint.interval': 100,
        }
        cfg.merge_from_dict(options)
        # `fast` is replaced as a whole, because merging FAST into it would keep the config's key `fast.compile`.
        cfg.fast = FAST
        if context.tiny:
            cfg.model.backbone.update(depth=18)
            cfg.model.projector.update(in_channels=512)
            cfg.model.queue.length = 64
        runner = launch.train(cfg)
        scalars = runner.message_hub.get_scalar
        times, data_times, losses = (
            torch.tensor(scalars(f'train/{name}').data[0]) for name in ('time', 'data_time', 'loss')
        )
        # Only the last epoch counts, without its first step, which includes the start of the workers.
        last = slice(1 - len(runner.train_dataloader), None)
        context.record(
            images_per_second=round(cfg.total_batch_size / float(times[last].mean()), 1),
            data_share=round(float(data_times[last].sum() / times[last].sum()), 3),
            first_loss=round(float(losses[0]), 3),
            last_loss=round(float(losses[-1]), 3),
        )

    return work


def evaluation(context: Context) -> None:
    """Time k-NN, logistic regression and the extraction of features."""
    count, width, classes = (400, 32, 4) if context.tiny else (100_000, 2048, 100)
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (count + count // 10,), generator=generator)
    centers = torch.randn(classes, width, generator=generator)
    vectors = torch.randn(len(labels), width, generator=generator) + 0.3 * centers[labels]
    train = Features(vectors[:count], labels[:count])
    test = Features(vectors[count:], labels[count:])

    start = time.perf_counter()
    right = knn_right(train, test, [20, 200], device=context.device)
    accuracy = 100 * float(right[20].float().mean())
    context.record(knn_s=round(time.perf_counter() - start, 2), accuracy=round(accuracy, 2))

    few = Features(train.x[: count // 4], train.y[: count // 4])
    start = time.perf_counter()
    fit = logistic_regression(few, test, strengths=[1e-1, 1e-2, 1e-3], device=context.device)
    context.record(logreg_s=round(time.perf_counter() - start, 2), scores=fit.scores)

    network = MODELS.build(dict(type='mmpretrain.ResNet', depth=18 if context.tiny else 50))
    resize, crop = (40, 32) if context.tiny else (256, 224)
    view = [dict(type='Resize', size=resize), dict(type='CenterCrop', size=crop)]
    images = ImageFolder(context.scratch / 'images', views=[view])
    for precision in ('float32', 'bfloat16'):
        settings = Extraction(
            (0.5,) * 3,
            (0.25,) * 3,
            device=context.device,
            workers=0 if context.tiny else 15,
            precision=precision,
        )
        start = time.perf_counter()
        features = extract(network, images, settings)
        rate = len(features.x) / (time.perf_counter() - start)
        context.record(extraction=precision, images_per_second=round(rate, 1))


def kernels(context: Context) -> None:
    """Time single operations on the device: batch norm with ReLU, InfoNCE and the creation of two views."""
    torch.backends.cudnn.benchmark = True
    shapes = [(512, 256, 56, 56), (512, 512, 28, 28), (512, 1024, 14, 14)]
    for shape in [(4, 8, 6, 6)] if context.tiny else shapes:
        norm_kernels(context, shape)
    rows = 4 if context.tiny else 256
    q, k, queue = (
        F.normalize(torch.randn(count, 256, device=context.device), dim=1)
        for count in (rows, rows, 256 * rows)
    )
    q.requires_grad_()

    def loss() -> None:
        with torch.autocast(context.device, torch.bfloat16):
            values, _ = info_nce(q, k, queue, 0.2)
        torch.autograd.grad(values.mean(), q)

    context.record(kernel='InfoNCE', both_ms=round(1e3 * seconds_of(loss), 3))
    pipeline = load_config('mmairl::_base_/views/on_device.py').mocov2_on_device
    preprocessor = ViewPreprocessor((0.5,) * 3, (0.25,) * 3, [pipeline] * 2, channels_last=True)
    preprocessor.to(context.device)
    batch = random_batch(TINY if context.tiny else ON_GPU, context.device)
    seconds = seconds_of(lambda: preprocessor(dict(batch), training=True), 5)
    context.record(kernel='two views on the device', forward_ms=round(1e3 * seconds, 2))


def norm_kernels(context: Context, shape: tuple[int, ...]) -> None:
    """Time batch norm with ReLU on a batch of two views, eager and fused. For the fused kernels, record the memory speed."""
    x = torch.randn(shape, device=context.device, dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    grad = torch.randn_like(x)
    moved = x.numel() * 2
    for fused in (False, True):
        layer = SyncBN(shape[1]).to(context.device).train()
        layer.fused = fused

        def forward(layer: SyncBN = layer) -> Tensor:
            with views_in_batch([layer], 2):
                return layer(x, relu=True)

        def both(forward: Callable[[], Tensor] = forward) -> None:
            x.grad = None
            forward().backward(grad)

        ahead = seconds_of(forward, 10)
        behind = max(seconds_of(both, 10) - ahead, 1e-9)
        context.record(
            kernel=f'batch norm and ReLU, {"fused" if fused else "eager"}',
            shape=shape,
            forward_ms=round(1e3 * ahead, 3),
            backward_ms=round(1e3 * behind, 3),
            # In the forward pass, the fused kernels read x twice and write y. In the backward pass,
            # they read x, dy and y twice each and write dx.
            forward_terabytes_per_second=round(3 * moved / ahead / 1e12, 3) if fused else None,
            backward_terabytes_per_second=round(7 * moved / behind / 1e12, 3) if fused else None,
        )
