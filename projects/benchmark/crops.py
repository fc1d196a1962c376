"""A step with small crops: DINO and SwAV, ours beside lightly's layers and losses, on one network and the same crops."""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import build_optim_wrapper
from torch import Tensor, nn

from mmairl.data.views import normalised
from mmairl.engine.fast import make_fast
from mmairl.hooks.bad_images import NonFiniteHook
from mmairl.hooks.log import AsyncRuntimeInfoHook
from mmairl.hooks.momentum import MomentumHook
from mmairl.models.siamese import pooled
from mmairl.registry import MODELS
from projects.benchmark.augment import MEAN, STD
from projects.benchmark.of_lightly import installed
from projects.benchmark.step import SGD, Size, Step, quiet, training_loop
from projects.benchmark.timing import Case
from projects.more_methods import dino, swav  # noqa: F401  registered by their import

LARGE, SMALL = 2, 6
FULL = Size(depth=50, image=224, batch=8, features=2048, hidden=2048, queue=0)
ON_GPU = Size(depth=50, image=224, batch=128, features=2048, hidden=2048, queue=0)
TINY = Size(depth=18, image=32, batch=4, features=512, hidden=16, queue=0)
OUT = dict(dino=(256, 4096), swav=(128, 3000))  # of the projector, and prototypes
NOTE = (
    f'{LARGE} crops at full size and {SMALL} at three sevenths of it, in float32 on one ResNet, with SGD. That both take the '
    "same step is checked in float64 on a ResNet-18, where lightly's batch norm sees a crop at a time, as ours does. Crops "
    'of one size in one pass are another step there: their statistics are joined. Its losses and its prototypes are its own.'
)
LOOPS = {"lightly's loop, a crop at a time": (False, '>= 1'), "lightly's, crops of one size in one pass": (True, '')}


def crops(device: str, quick: bool) -> Iterator[Case]:
    """DINO and SwAV with small crops, as they stand and with channels last on both sides."""
    if not installed('DINO and SwAV'):
        return
    check_one_step()
    size = TINY if quick else ON_GPU if device == 'cuda' else FULL
    batch = random_crops(size, device)
    for method in OUT:
        for name, fast in (('float32', {}), ('channels last', dict(channels_last=True))):
            title = f'{method.upper() if method == "dino" else "SwAV"} step, {LARGE} + {SMALL} crops, {size}, {name}'
            for loop, (together, aim) in LOOPS.items():
                model, peer = siamese(size, method).to(device), Lightly(size, method).to(device)
                copy_weights(model, peer)
                sides = our_step(model, batch, fast), their_step(peer, batch, together=together, **fast)
                yield Case(title, loop, *sides, images=size.batch, memory=True, aim=aim, note=NOTE)


def random_crops(size: Size, device: str = 'cpu') -> dict:
    generator = torch.Generator().manual_seed(0)
    sides = [size.image] * LARGE + [size.image * 3 // 7] * SMALL
    made = [torch.randint(0, 256, (size.batch, 3, s, s), dtype=torch.uint8, generator=generator) for s in sides]
    return dict(inputs=[crop.to(device) for crop in made], data_samples={})


@quiet()
def siamese(size: Size, method: str) -> BaseModel:
    """Our network; SwAV's prototypes are its head's, DINO's its projector's."""
    norm, (out, prototypes) = dict(type='SyncBN'), OUT[method]
    neck = dict(in_channels=size.features, hidden_channels=size.hidden, out_channels=out, norm_cfg=norm)
    parts = dict(
        dino=dict(
            projector=dict(type='PrototypeNeck', layers=3, prototypes=prototypes, **neck),
            head=dict(type='DINOHead', prototypes=prototypes),
        ),
        swav=dict(
            projector=dict(type='MLPNeck', **neck),
            head=dict(type='SwAVHead', channels=out, prototypes=prototypes),
            target='stop_gradient',
        ),
    )[method]
    torch.manual_seed(0)
    model = MODELS.build(
        dict(
            type='Siamese',
            backbone=dict(type='mmpretrain.ResNet', depth=size.depth, norm_cfg=norm, zero_init_residual=False),
            key_views=[*range(LARGE)],
            data_preprocessor=dict(type='ViewPreprocessor', mean=MEAN, std=STD),
            **parts,
        )
    )
    model.init_weights()
    return model.train()


class Lightly(nn.Module):
    """Its projection head and prototypes on a ResNet; GELU gives way to the ReLU that ours has."""

    def __init__(self, size: Size, method: str) -> None:
        from lightly.loss import DINOLoss, SwaVLoss
        from lightly.models.modules.heads import DINOProjectionHead, SwaVProjectionHead, SwaVPrototypes

        super().__init__()
        backbone = dict(type='mmpretrain.ResNet', depth=size.depth, norm_cfg=dict(type='BN'), zero_init_residual=False)
        with quiet():
            self.backbone = MODELS.build(backbone)
        self.size, self.method, (out, prototypes) = size, method, OUT[method]
        if method == 'dino':
            self.head = DINOProjectionHead(size.features, size.hidden, out, prototypes, batch_norm=True)
            for place, layer in enumerate(self.head.layers):
                if isinstance(layer, nn.GELU):
                    self.head.layers[place] = nn.ReLU(inplace=True)
            self.loss = DINOLoss(prototypes)
        else:
            self.head = SwaVProjectionHead(size.features, size.hidden, out)
            self.prototypes = SwaVPrototypes(out, prototypes)
            self.loss = SwaVLoss()
        self.train()

    def another(self) -> 'Lightly':
        """Return a copy; layers with a weight norm cannot be copied by themselves."""
        made = Lightly(self.size, self.method).to(self.backbone.conv1.weight)
        made.load_state_dict(self.state_dict())
        return made

    def forward(self, images: Tensor) -> Tensor:
        z = self.head(pooled(self.backbone(images)))
        return z if self.method == 'dino' else self.prototypes(F.normalize(z, dim=1))


def copy_weights(ours: BaseModel, peer: Lightly) -> None:
    peer.backbone.load_state_dict(ours.backbone.state_dict())
    linear = [layer for layer in peer.head.layers if isinstance(layer, nn.Linear | nn.BatchNorm1d)]
    layers = [layer for layer in ours.projector.mlp if not isinstance(layer, nn.ReLU)]
    for theirs, layer in zip(linear, layers, strict=True):
        if theirs.bias is None:
            layer.bias.data.zero_()  # lightly's layers in front of a norm have none
        theirs.load_state_dict(layer.state_dict(), strict=theirs.bias is not None)
    if peer.method == 'dino':
        peer.head.last_layer.weight_v.data.copy_(ours.projector.prototypes.weight.data)
    else:
        (prototypes,) = peer.prototypes.heads
        prototypes.weight.data.copy_(F.normalize(ours.head.prototypes.weight.data, dim=1))
        prototypes.bias.data.zero_()
    if ours.teacher is not None:
        ours.teacher.copy_from(ours)


@quiet()
def our_step(model: BaseModel, batch: dict, fast: dict) -> Step:
    make_fast(model, fast)
    wrapper = build_optim_wrapper(model, dict(type='AutocastOptimWrapper', optimizer=SGD))
    teacher: list[Hook] = [MomentumHook()] if model.teacher is not None else []
    return training_loop(model, wrapper, batch, [AsyncRuntimeInfoHook(), NonFiniteHook(), *teacher])


def their_step(peer: Lightly, batch: dict, together: bool, channels_last: bool = False) -> Callable[[], dict]:
    """One step of its benchmarks' loops; `together` sends crops of one size through the network in one pass."""
    from lightly.models.utils import update_momentum

    first = peer.backbone.conv1.weight
    mean, std = (torch.tensor(values).view(3, 1, 1).to(first) for values in (MEAN, STD))
    layout = torch.channels_last if channels_last else torch.contiguous_format
    views = [normalised(crop, mean, std).to(first.dtype).contiguous(memory_format=layout) for crop in batch['inputs']]
    peer.to(memory_format=layout)
    large, small = views[:LARGE], views[LARGE:]
    trained = [weight for weight in peer.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(trained, **{key: value for key, value in SGD.items() if key != 'type'})
    teacher = peer.another().requires_grad_(False) if peer.method == 'dino' else None
    weights = dict(first=first, last=list(peer.backbone.parameters())[-1])

    def through(network: nn.Module, crops: Sequence[Tensor]) -> list[Tensor]:
        if together:
            return list(network(torch.cat(list(crops))).chunk(len(crops)))
        return [network(crop) for crop in crops]

    def one() -> dict[str, Tensor]:
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        if teacher is None:
            (prototypes,) = peer.prototypes.heads
            prototypes.weight.data.copy_(F.normalize(prototypes.weight.data, dim=1))
            loss = peer.loss(through(peer, large), through(peer, small))
        else:
            update_momentum(peer.backbone, teacher.backbone, m=0.99)
            update_momentum(peer.head, teacher.head, m=0.99)
            with torch.no_grad():
                keys = through(teacher, large)
            loss = peer.loss(keys, through(peer, large) + through(peer, small))
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
        moved = {name: weight.detach() - before[name] for name, weight in weights.items()}
        return dict(loss=loss.detach().sum(), **moved)

    return one


def check_one_step() -> None:
    """Check in float64 that both sides take the same step."""
    for method in OUT:
        ours, theirs = siamese(TINY, method).double(), Lightly(TINY, method).double()
        copy_weights(ours, theirs)
        batch = random_crops(TINY)
        one, other = our_step(ours, batch, {})(), their_step(theirs, batch, together=False)()
        torch.testing.assert_close(one['loss'], other['loss'], atol=1e-6, rtol=0)
        for name in ('first', 'last'):
            assert (one[name] - other[name]).norm() < 1e-4 * other[name].norm(), (
                f'{method}: the {name} layers move apart'
            )
