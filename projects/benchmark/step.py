"""One whole training step, ours beside mmpretrain's: forward, loss, backward, optimizer, teacher, queue, logging."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from mmengine.hooks import RuntimeInfoHook as PlatformRuntimeInfoHook
from mmengine.logging import MessageHub, MMLogger
from mmengine.model import BaseModel, is_model_wrapper
from mmengine.optim import OptimWrapper, build_optim_wrapper
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mmairl.engine.fast import make_fast
from mmairl.hooks.momentum import MomentumHook
from mmairl.hooks.nonfinite import NonFiniteHook
from mmairl.hooks.queue import QueueHook
from mmairl.hooks.runtime_info import AsyncRuntimeInfoHook
from mmairl.registry import MODELS
from projects.benchmark.timing import Case

Step = Callable[[], dict[str, Tensor]]
STEPS = 10_000  # a length of training for the teachers' schedules; no more than a few of its steps are taken
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NOTE = (
    'A step is all that a run does between two batches: normalise two views, student and teacher on both, loss, backward, '
    'optimizer, teacher, queue, and what the logging hooks do per step. Both sides have the same backbone, batch and number '
    "of passes (two student passes with gradient, two teacher passes). Where both are float32 BYOL, the first step's loss "
    "and the weights after it are checked to be equal; mmpretrain's loss is ours less 4, since it leaves out the constant. "
    "mmpretrain's MoCo goes one direction a step, so that one step of MoCo v2+ stands beside two of it, with the views "
    'swapped; it has no predictor and half the width of keys. mmpretrain publishes both in float32 and the default layout, '
    "and mmengine's AmpOptimWrapper refuses a CPU. `channels last by hand` is its network with the layout that it has no "
    "key for: what is left of the ratio there is not layout. Limit: the FLOPs of the passes at the float32 product's rate; "
    'bfloat16 can pass it.'
)


@contextmanager
def quiet() -> Iterator[None]:
    """Without mmengine's line for each tensor that is initialised, and each that is left out of the optimizer."""
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclass(frozen=True)
class Size:
    """What a step is measured at."""

    depth: int
    image: int
    batch: int
    features: int
    hidden: int
    queue: int

    def __str__(self) -> str:
        return f'ResNet-{self.depth} {self.image}, batch {self.batch}'


FULL = Size(depth=50, image=224, batch=8, features=2048, hidden=4096, queue=65_536)
ON_GPU = Size(depth=50, image=224, batch=256, features=2048, hidden=4096, queue=65_536)
TINY = Size(depth=18, image=64, batch=8, features=512, hidden=64, queue=64)


def step(device: str, quick: bool) -> Iterator[Case]:
    """BYOL and MoCo v2+, as they stand and made fast, against mmpretrain's BYOL and MoCo."""
    size = TINY if quick else ON_GPU if device == 'cuda' else FULL
    shape, generator = (2, size.batch, 3, size.image, size.image), torch.Generator().manual_seed(0)
    views = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).unbind()
    batch = dict(inputs=[view.to(device) for view in views], data_samples={})
    rest = dict(images=size.batch, memory=True, flops=flops(size), note=NOTE)
    fast, amp = dict(channels_last=True, precision='bfloat16'), device == 'cuda'
    plain, laid_out, mixed = (
        "mmpretrain's BYOL",
        "mmpretrain's BYOL, channels last by hand",
        "mmpretrain's BYOL, AMP bfloat16",
    )

    def pair(**how) -> tuple[Step, Step]:
        ours, theirs = how.pop('ours', {}), how
        model = siamese(size, 'byol').to(device)
        peer = mmpretrain_byol(size).to(device)
        copy_weights(model, peer)
        return our_step(model, batch, **ours), their_step(peer, batch, **theirs)

    yield Case(f'BYOL step, {size}, float32', plain, *pair(), same, **rest)
    yield Case(f'BYOL step, {size}, channels last', plain, *pair(ours=dict(channels_last=True)), same, **rest)
    yield Case(
        f'BYOL step, {size}, channels last',
        laid_out,
        *pair(ours=dict(channels_last=True), channels_last=True),
        same,
        **rest,
    )
    yield Case(f'BYOL step, {size}, fast', plain, *pair(ours=fast), alike, aim='>= 1.4', **rest)
    if amp:
        yield Case(f'BYOL step, {size}, fast', mixed, *pair(ours=fast, amp=True), alike, **rest)
    ours, theirs = (
        our_step(siamese(size, 'mocov2plus').to(device), batch, 'SGD', **fast),
        _both_ways(size, batch, device),
    )
    yield Case(f'MoCo v2+ step, {size}, fast', "two steps of mmpretrain's MoCo", ours, theirs, aim='>= 1.4', **rest)


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """The loss, up to the constant that mmpretrain leaves out, and how the first and the last layer move.

    To a twentieth of their length: pixels are normalised in another order, and the sign of a ReLU's input near 0 hangs on it.
    """
    torch.testing.assert_close(ours['loss'], theirs['loss'] + 4, atol=1e-4, rtol=1e-4)
    for name in ('first', 'last'):
        assert (ours[name] - theirs[name]).norm() < 0.05 * theirs[name].norm(), f'the {name} layers move differently'


def alike(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """The loss in bfloat16: 8 bits of mantissa, and untrained embeddings whose cosines are sums of many roundings."""
    torch.testing.assert_close(ours['loss'], theirs['loss'] + 4, atol=0.1, rtol=0)


@quiet()
def siamese(size: Size, method: str, norm_type: str = 'SyncBN') -> BaseModel:
    """Our network; the last layers without bias, as mmpretrain's necks have them."""
    norm, of_rows = dict(type=norm_type), dict(type='BN1d' if norm_type == 'BN' else norm_type)
    neck = dict(type='MLPNeck', hidden_channels=size.hidden, out_channels=256, norm_cfg=of_rows, last_bias=False)
    contrast = dict(head=dict(type='ContrastiveHead'), queue=dict(type='KeyQueue', length=size.queue))
    torch.manual_seed(0)
    model = MODELS.build(
        dict(
            type='Siamese',
            backbone=dict(type='mmpretrain.ResNet', depth=size.depth, norm_cfg=norm, zero_init_residual=False),
            projector=dict(in_channels=size.features, **neck),
            predictor=dict(in_channels=256, **neck),
            data_preprocessor=dict(type='ViewPreprocessor', mean=MEAN, std=STD),
            **(contrast if method == 'mocov2plus' else dict(head=dict(type='RegressionHead'))),
        )
    )
    model.init_weights()
    return model.train()


def mmpretrain_byol(size: Size) -> BaseModel:
    """As mmpretrain's byol_resnet50 config has it."""
    neck = dict(
        type='mmpretrain.NonLinearNeck', hid_channels=size.hidden, out_channels=256, num_layers=2, with_bias=True
    )
    neck.update(with_last_bn=False, norm_cfg=dict(type='SyncBN'))
    predictor = dict(in_channels=256, with_avg_pool=False, **neck)
    loss = dict(type='mmpretrain.CosineSimilarityLoss')
    head = dict(type='mmpretrain.LatentPredictHead', predictor=predictor, loss=loss)
    neck = dict(in_channels=size.features, with_avg_pool=True, **neck)
    return _of_mmpretrain('BYOL', size, 'SyncBN', base_momentum=0.01, neck=neck, head=head)


def mmpretrain_moco(size: Size) -> BaseModel:
    """As mmpretrain's mocov2_resnet50 config has it."""
    neck = dict(type='mmpretrain.MoCoV2Neck', in_channels=size.features, hid_channels=size.features, out_channels=128)
    loss = dict(type='mmpretrain.CrossEntropyLoss')
    head = dict(type='mmpretrain.ContrastiveHead', loss=loss, temperature=0.2)
    return _of_mmpretrain('MoCo', size, 'BN', queue_len=size.queue, feat_dim=128, neck=neck, head=head)


@quiet()
def _of_mmpretrain(kind: str, size: Size, norm: str, **parts) -> BaseModel:
    backbone = dict(type='mmpretrain.ResNet', depth=size.depth, norm_cfg=dict(type=norm), zero_init_residual=False)
    statistics = (tuple(255 * value for value in values) for values in (MEAN, STD))
    preprocessor = dict(zip(('mean', 'std'), statistics), type='mmpretrain.SelfSupDataPreprocessor')
    model = MODELS.build(dict(type=f'mmpretrain.{kind}', backbone=backbone, data_preprocessor=preprocessor, **parts))
    model.init_weights()
    return model.train()


def copy_weights(ours: BaseModel, peer: BaseModel) -> None:
    """Ours into mmpretrain's BYOL; its target network starts as a copy at the first step, as our teacher has."""
    peer.backbone.load_state_dict(ours.backbone.state_dict())
    for neck, mlp in ((peer.neck, ours.projector.mlp), (peer.head.predictor, ours.predictor.mlp)):
        for theirs, layer in ((neck.fc0, mlp[0]), (neck.bn0, mlp[1]), (neck.fc1, mlp[3])):
            theirs.load_state_dict(layer.state_dict())
    ours.teacher.copy_from(ours)


def rate(batch: dict) -> float:
    """mmpretrain's 4.8 for 4096 images, scaled to the batch."""
    return 4.8 * len(batch['inputs'][0]) / 4096


@quiet()
def our_step(model: BaseModel, batch: dict, optimizer: str = 'LARS', **fast) -> Step:
    """A step through our wrapper and those of our hooks that act in every step; `fast` is the config's."""
    lars = dict(lr=rate(batch), momentum=0.9, weight_decay=1e-6)
    kinds = dict(
        LARS=dict(type='LARS', **lars),
        SGD=dict(type='SGD', lr=0.03, momentum=0.9, weight_decay=1e-4),
    )
    make_fast(model, fast)
    dtype = fast.get('precision')
    settings = dict(type='AutocastOptimWrapper', dtype=dtype)
    wrapper = build_optim_wrapper(model, dict(settings, optimizer=kinds[optimizer]))
    return training_loop(model, wrapper, batch, [AsyncRuntimeInfoHook(), NonFiniteHook(), MomentumHook(), QueueHook()])


@quiet()
def their_step(model: BaseModel, batch: dict, channels_last: bool = False, amp: bool = False) -> Step:
    """A step as mmpretrain's BYOL config takes it: LARS, biases and normalisation layers neither adapted nor decayed."""
    excluded = dict(decay_mult=0, lars_exclude=True)
    config = dict(
        type='mmengine.AmpOptimWrapper' if amp else 'mmengine.OptimWrapper',
        optimizer=dict(type='mmpretrain.LARS', lr=rate(batch), momentum=0.9, weight_decay=1e-6),
        paramwise_cfg=dict(custom_keys={'bn': excluded, 'bias': excluded, 'downsample.1': excluded}),
        constructor='mmengine.DefaultOptimWrapperConstructor',
        **(dict(dtype='bfloat16') if amp else {}),
    )
    if channels_last:
        model.to(memory_format=torch.channels_last)
    return training_loop(model, build_optim_wrapper(model, config), batch, [PlatformRuntimeInfoHook()])


@quiet()
def _both_ways(size: Size, batch: dict, device: str) -> Step:
    """Two steps of mmpretrain's MoCo: each view is the query once, as in one step of MoCo v2+."""
    model = mmpretrain_moco(size).to(device)
    optimizer = dict(type='SGD', lr=0.03, momentum=0.9, weight_decay=1e-4)
    config = dict(
        type='mmengine.OptimWrapper', optimizer=optimizer, constructor='mmengine.DefaultOptimWrapperConstructor'
    )
    wrapper = build_optim_wrapper(model, config)
    ways = [dict(batch, inputs=views) for views in (batch['inputs'], batch['inputs'][::-1])]
    one, other = (training_loop(model, wrapper, way, [PlatformRuntimeInfoHook()]) for way in ways)

    def both() -> dict[str, Tensor]:
        one()
        return other()

    return both


def training_loop(model: BaseModel, wrapper: OptimWrapper, batch: dict, hooks: list) -> Step:
    """One iteration of the training loop, with a runner in name only."""
    hub = MessageHub.get_instance(f'step{id(model)}')
    MessageHub.get_current_instance().update_info('max_iters', STEPS)  # mmpretrain's teacher asks for it
    inner = model.module if is_model_wrapper(model) else model
    runner = SimpleNamespace(model=model, optim_wrapper=wrapper, message_hub=hub, iter=0, max_iters=STEPS, seed=0)
    for hook in hooks:
        if not isinstance(hook, PlatformRuntimeInfoHook):  # which would look at a whole runner
            hook.before_train(runner)
    weights = dict(first=inner.backbone.conv1.weight, last=list(inner.backbone.parameters())[-1])

    def one() -> dict[str, Tensor]:
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        outputs = model.train_step(batch, wrapper)
        for hook in hooks:
            hook.after_train_iter(runner, runner.iter, batch, outputs)
        runner.iter += 1
        return dict(
            loss=outputs['loss'].detach(), **{name: weight.detach() - before[name] for name, weight in weights.items()}
        )

    return one


def flops(size: Size) -> float:
    """Of the four passes and the backward one, counted on tensors without memory."""
    model = siamese(size, 'byol').to('meta')
    views = [torch.empty(size.batch, 3, size.image, size.image, device='meta') for _ in range(2)]
    with FlopCounterMode(display=False) as counter:
        model.loss(views)['loss'].backward()
    return float(counter.get_total_flops())
