"""Compare training steps of DINO and SwAV on small crops: mmairl against lightly's layers and losses."""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from mmengine.dist import get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import build_optim_wrapper
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mmairl.data.preprocess import normalize
from mmairl.engine.distributed import DistributedModel
from mmairl.engine.hooks.after_step import MomentumHook
from mmairl.engine.hooks.bad_data import NonFiniteHook
from mmairl.engine.hooks.progress import AsyncRuntimeInfoHook
from mmairl.engine.speed import make_fast
from mmairl.models.backbones import pooled
from mmairl.registry import MODELS
from projects.benchmark.augment import MEAN, STD
from projects.benchmark.of_lightly import installed
from projects.benchmark.step import SGD, Size, Step, quiet, training_loop
from projects.benchmark.timing import Case

LARGE, SMALL = 2, 6  # number of large and of small crops
FULL = Size(depth=50, image=224, batch=8, features=2048, hidden=2048, queue=0)
ON_GPU = Size(depth=50, image=224, batch=128, features=2048, hidden=2048, queue=0)
TINY = Size(depth=18, image=32, batch=4, features=512, hidden=16, queue=0)
# For each method: the output width of the projector, and the number of prototypes.
OUT = dict(dino=(256, 4096), swav=(128, 3000))
NOTE = (
    f'{LARGE} crops at full size and {SMALL} at three sevenths of it, in float32 on one ResNet, with SGD. A check in float64 '
    "on a ResNet-18 shows that mmairl and lightly take the same step if lightly's batch norm normalizes each crop separately, "
    "as mmairl does. If all crops of one size pass through lightly's network at once, lightly's step differs, because these "
    'crops share their batch statistics. With several processes on CPUs, each process has separate statistics in mmairl and in '
    "lightly, because torch's SyncBN requires GPUs."
)
LOOPS = {
    "lightly's loop, a crop at a time": (False, '>= 1'),
    "lightly's, crops of one size in one pass": (True, ''),
}


def crops(device: str, quick: bool) -> Iterator[Case]:
    """Compare steps of DINO and SwAV on small crops, in the default memory layout and with channels last."""
    if not installed('DINO and SwAV'):
        return
    check_one_step()
    processes = f', {get_world_size()} processes' if get_world_size() > 1 else ''
    size = TINY if quick else ON_GPU if device == 'cuda' else FULL
    batch = random_crops(size, device)
    for method in OUT:
        for name, fast in (('float32', {}), ('channels last', dict(channels_last=True))):
            title = f'{method.upper() if method == "dino" else "SwAV"} step, {LARGE} + {SMALL} crops, {size}, {name}{processes}'
            for loop, (together, aim) in LOOPS.items():
                model, peer = (
                    siamese(size, method, device),
                    Lightly(size, method, together).to(device),
                )
                copy_weights(model, peer)
                sides = our_step(model, batch, fast), their_step(peer, batch, **fast)
                yield Case(
                    title,
                    loop,
                    *sides,
                    images=size.batch * get_world_size(),
                    memory=True,
                    aim=aim,
                    note=NOTE,
                )


def random_crops(size: Size, device: str = 'cpu') -> dict:
    generator = torch.Generator().manual_seed(get_rank())
    sides = [size.image] * LARGE + [size.image * 3 // 7] * SMALL
    made = [
        torch.randint(0, 256, (size.batch, 3, s, s), dtype=torch.uint8, generator=generator)
        for s in sides
    ]
    return dict(inputs=[crop.to(device) for crop in made], data_samples={})


@quiet()
def siamese(size: Size, method: str, device: str = 'cpu') -> BaseModel:
    """Return mmairl's network. Prototypes belong to the head for SwAV, and to the projector for DINO."""
    norm, (out, prototypes) = dict(type='SyncBN', group=1 if device == 'cpu' else None), OUT[method]
    neck = dict(
        in_channels=size.features, hidden_channels=size.hidden, out_channels=out, norm_cfg=norm
    )
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
            backbone=dict(
                type='mmpretrain.ResNet', depth=size.depth, norm_cfg=norm, zero_init_residual=False
            ),
            key_views=[*range(LARGE)],
            data_preprocessor=dict(type='ViewPreprocessor', mean=MEAN, std=STD),
            **parts,
        )
    )
    model.init_weights()
    return model.to(device).train()


class Lightly(nn.Module):
    """A ResNet with lightly's projection head, prototypes and loss. As in mmairl's projector, ReLU replaces GELU.

    With `together`, crops of one size pass through the network at once.
    """

    def __init__(self, size: Size, method: str, together: bool = False) -> None:
        from lightly.loss import DINOLoss, SwaVLoss
        from lightly.models.modules.heads import (
            DINOProjectionHead,
            SwaVProjectionHead,
            SwaVPrototypes,
        )

        super().__init__()
        backbone = dict(
            type='mmpretrain.ResNet',
            depth=size.depth,
            norm_cfg=dict(type='BN'),
            zero_init_residual=False,
        )
        with quiet():
            self.backbone = MODELS.build(backbone)
        self.size, self.method, self.together, (out, prototypes) = (
            size,
            method,
            together,
            OUT[method],
        )
        if method == 'dino':
            self.head = DINOProjectionHead(
                size.features, size.hidden, out, prototypes, batch_norm=True
            )
            for place, layer in enumerate(self.head.layers):
                if isinstance(layer, nn.GELU):
                    self.head.layers[place] = nn.ReLU(inplace=True)
            self.loss = DINOLoss(prototypes)
        else:
            self.head = SwaVProjectionHead(size.features, size.hidden, out)
            self.prototypes = SwaVPrototypes(out, prototypes)
            self.loss = SwaVLoss(sinkhorn_gather_distributed=get_world_size() > 1)
        self.train()

    def another(self) -> 'Lightly':
        """Return a copy. copy.deepcopy fails for layers with weight norm."""
        made = Lightly(self.size, self.method, self.together).to(self.backbone.conv1.weight)
        made.load_state_dict(self.state_dict())
        return made

    def embed(self, crops: Sequence[Tensor]) -> list[Tensor]:
        if self.together:
            crops = [torch.cat(list(crops))]
        made = [self.head(pooled(self.backbone(crop))) for crop in crops]
        if self.method == 'swav':
            made = [self.prototypes(F.normalize(z, dim=1)) for z in made]
        return [z for joined in made for z in joined.split(self.size.batch)]

    def forward(
        self, large: Sequence[Tensor], small: Sequence[Tensor], keys: Sequence[Tensor] | None
    ) -> Tensor:
        """Return the loss of all crops. DDP expects a single call per step, so this method does the whole forward pass."""
        z, small_z = self.embed(large), self.embed(small)
        return (self.loss(z, small_z) if keys is None else self.loss(keys, z + small_z)).sum()


def copy_weights(ours: BaseModel, peer: Lightly) -> None:
    peer.backbone.load_state_dict(ours.backbone.state_dict())
    linear = [layer for layer in peer.head.layers if isinstance(layer, nn.Linear | nn.BatchNorm1d)]
    layers = [layer for layer in ours.projector.mlp if not isinstance(layer, nn.ReLU)]
    for theirs, layer in zip(linear, layers, strict=True):
        if theirs.bias is None:
            layer.bias.data.zero_()  # lightly's layers have no bias if a norm layer follows
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
    teacher: list[Hook] = [MomentumHook()] if model.teacher is not None else []
    if get_world_size() > 1:
        model = DistributedModel(model)
    wrapper = build_optim_wrapper(model, dict(type='AutocastOptimWrapper', optimizer=SGD))
    return training_loop(model, wrapper, batch, [AsyncRuntimeInfoHook(), NonFiniteHook(), *teacher])


def their_step(peer: Lightly, batch: dict, channels_last: bool = False) -> Callable[[], dict]:
    """Return a function that takes one step, as the training loop of lightly's benchmark does."""
    from lightly.models.utils import update_momentum

    first = peer.backbone.conv1.weight
    mean, std = (torch.tensor(values).view(3, 1, 1).to(first) for values in (MEAN, STD))
    layout = torch.channels_last if channels_last else torch.contiguous_format
    views = [
        normalize(crop, mean, std).to(first.dtype).contiguous(memory_format=layout)
        for crop in batch['inputs']
    ]
    peer.to(memory_format=layout)
    large, small = views[:LARGE], views[LARGE:]
    trained = [weight for weight in peer.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(
        trained, **{key: value for key, value in SGD.items() if key != 'type'}
    )
    teacher = peer.another().requires_grad_(False) if peer.method == 'dino' else None
    weights = dict(first=first, last=list(peer.backbone.parameters())[-1])
    student = peer
    if get_world_size() > 1:
        if first.is_cuda:
            peer, teacher = (
                net and nn.SyncBatchNorm.convert_sync_batchnorm(net) for net in (peer, teacher)
            )
        student = DistributedDataParallel(peer)

    def one() -> dict[str, Tensor]:
        before, keys = {name: weight.detach().clone() for name, weight in weights.items()}, None
        if teacher is None:
            (prototypes,) = peer.prototypes.heads
            prototypes.weight.data.copy_(F.normalize(prototypes.weight.data, dim=1))
        else:
            update_momentum(peer.backbone, teacher.backbone, m=0.99)
            update_momentum(peer.head, teacher.head, m=0.99)
            with torch.no_grad():
                keys = teacher.embed(large)
        loss = student(large, small, keys)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        moved = {name: weight.detach() - before[name] for name, weight in weights.items()}
        return dict(loss=loss.detach(), **moved)

    return one


def check_one_step() -> None:
    """Check in float64 that mmairl and lightly take the same step."""
    for method in OUT:
        ours, theirs = siamese(TINY, method).double(), Lightly(TINY, method).double()
        copy_weights(ours, theirs)
        batch = random_crops(TINY)
        one, other = our_step(ours, batch, {})(), their_step(theirs, batch)()
        torch.testing.assert_close(one['loss'], other['loss'], atol=1e-6, rtol=0)
        for name in ('first', 'last'):
            assert (one[name] - other[name]).norm() < 1e-4 * other[name].norm(), (
                f'{method}: mmairl and lightly change the {name} layer differently'
            )
