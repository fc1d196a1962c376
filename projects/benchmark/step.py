"""Compare mmairl's training step (passes, loss, optimizer, teacher, queue, logging) with those of mmpretrain and lightly.

All libraries have the same backbone, batch and number of passes. A check in float64 shows that they take the same BYOL step;
the losses of mmpretrain and lightly omit a constant of 4. lightly's loop is that of its BYOL benchmark.
"""

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from mmengine.config import ConfigDict
from mmengine.hooks import RuntimeInfoHook as PlatformRuntimeInfoHook
from mmengine.logging import MessageHub
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, build_optim_wrapper
from torch import Tensor

from mmairl.data.preprocess import IMAGENET
from mmairl.engine.hooks.after_step import MomentumHook, QueueHook
from mmairl.engine.hooks.progress import AsyncRuntimeInfoHook
from mmairl.engine.speed import make_fast, set_fast_keys
from mmairl.registry import MODELS
from projects.benchmark.of_lightly import LightlyBYOL, Step, byol_step, with_changes
from projects.benchmark.timing import Case

# Number of steps for which the schedules of the teachers' momenta are defined. Only a few of these steps are taken.
STEPS = 10_000


@dataclass(frozen=True)
class Size:
    """The sizes at which a step is measured."""

    depth: int
    image: int
    batch: int
    features: int
    hidden: int

    def __str__(self) -> str:
        return f'ResNet-{self.depth} {self.image}, batch {self.batch}'


FULL = Size(depth=50, image=224, batch=8, features=2048, hidden=4096)
ON_GPU = Size(depth=50, image=224, batch=256, features=2048, hidden=4096)
TINY = Size(depth=18, image=32, batch=4, features=512, hidden=64)


def step(device: str, quick: bool) -> Iterator[Case]:
    """Compare BYOL, plain and with `fast`, with mmpretrain's and lightly's BYOL."""
    check_one_step()
    size = TINY if quick else ON_GPU if device == 'cuda' else FULL
    batch = random_batch(size, device)
    fast = dict(channels_last=True, precision='bfloat16')
    for peer_name, (make, take) in peers().items():
        for name, how in (('float32', {}), ('fast', fast)):
            model = siamese(size).to(device)
            peer = make(size).to(device)
            copy_weights(model, peer)
            sides = our_step(model, batch, **how), take(peer, batch)
            yield Case(f'BYOL step, {size}, {name}', peer_name, *sides, same_loss)


def peers() -> dict[str, tuple[Callable, Callable]]:
    """Return, for each library that implements BYOL, the functions that create its network and its step."""
    libraries = {"mmpretrain's BYOL": (mmpretrain_byol, their_step)}
    if importlib.util.find_spec('lightly') is None:
        print("lightly's BYOL is left out; `pip install --no-deps lightly` adds it")
    else:
        libraries["lightly's BYOL"] = lightly_byol, lightly_step
    return libraries


def random_batch(size: Size, device: str = 'cpu') -> dict:
    """Return two views of random bytes."""
    shape = (2, size.batch, 3, size.image, size.image)
    generator = torch.Generator().manual_seed(0)
    views = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(device)
    return dict(inputs=[*views], data_samples={})


def check_one_step() -> None:
    """Check in float64, on a small network, that mmairl takes the same step as each other library.

    In float32, an untrained ResNet-50 amplifies rounding errors to several percent of a layer's change.
    """
    for make, take in peers().values():
        ours = siamese(TINY).double()
        theirs = make(TINY).double()
        copy_weights(ours, theirs)
        batch = random_batch(TINY)
        same_step(our_step(ours, batch)(), take(theirs, batch)())


def same_step(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Compare losses and the changes of the first and the last layer. Losses of other libraries omit a constant of 4."""
    torch.testing.assert_close(ours['loss'], theirs['loss'] + 4, atol=1e-6, rtol=0)
    for name in ('first', 'last'):
        assert (ours[name] - theirs[name]).norm() < 1e-4 * theirs[name].norm(), (
            f'mmairl and the other library change the {name} layer differently'
        )


def same_loss(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Compare losses with the tolerance of bfloat16, because cosines of untrained embeddings sum many rounding errors."""
    torch.testing.assert_close(ours['loss'], theirs['loss'] + 4, atol=0.1, rtol=0)


def backbone(size: Size, norm: str = 'SyncBN') -> dict:
    norm_cfg = dict(type=norm)
    return dict(
        type='mmpretrain.ResNet', depth=size.depth, norm_cfg=norm_cfg, zero_init_residual=False
    )


def initialized(config: dict) -> BaseModel:
    torch.manual_seed(0)
    model = MODELS.build(config)
    model.init_weights()
    return model.train()


def siamese(size: Size) -> BaseModel:
    """Return mmairl's network. Its last layers have no bias, as in mmpretrain's necks."""
    neck = dict(type='MLPNeck', hidden_channels=size.hidden, out_channels=256, last_bias=False)
    neck['norm_cfg'] = dict(type='SyncBN')
    return initialized(
        dict(
            type='Siamese',
            backbone=backbone(size),
            projector=dict(in_channels=size.features, **neck),
            predictor=dict(in_channels=256, **neck),
            data_preprocessor=dict(type='ViewPreprocessor', **IMAGENET),
            head=dict(type='RegressionHead'),
        )
    )


def mmpretrain_byol(size: Size) -> BaseModel:
    """Return the network of mmpretrain's byol_resnet50 config."""
    neck = dict(type='mmpretrain.NonLinearNeck', hid_channels=size.hidden, out_channels=256)
    neck |= dict(num_layers=2, with_bias=True, with_last_bn=False, norm_cfg=dict(type='SyncBN'))
    predictor = dict(in_channels=256, with_avg_pool=False, **neck)
    loss = dict(type='mmpretrain.CosineSimilarityLoss')
    normal = {key: [255 * value for value in values] for key, values in IMAGENET.items()}
    return initialized(
        dict(
            type='mmpretrain.BYOL',
            base_momentum=0.01,
            backbone=backbone(size),
            neck=dict(in_channels=size.features, with_avg_pool=True, **neck),
            head=dict(type='mmpretrain.LatentPredictHead', predictor=predictor, loss=loss),
            data_preprocessor=dict(type='mmpretrain.SelfSupDataPreprocessor', **normal),
        )
    )


def copy_weights(ours: BaseModel, peer: BaseModel) -> None:
    """Copy mmairl's weights to the BYOL of another library, and start mmairl's teacher as a copy of the student."""
    peer.backbone.load_state_dict(ours.backbone.state_dict())
    if isinstance(peer, LightlyBYOL):
        heads = (peer.projection_head.layers, peer.prediction_head.layers)
        necks = [(head[0], head[1], head[3]) for head in heads]
    else:
        necks = [(neck.fc0, neck.bn0, neck.fc1) for neck in (peer.neck, peer.head.predictor)]
    for neck, mlp in zip(necks, (ours.projector.mlp, ours.predictor.mlp)):
        for theirs, layer in zip(neck, (mlp[0], mlp[1], mlp[3])):
            if theirs.bias is not None:
                theirs.bias.data.zero_()  # mmairl's layer has no bias, or a bias of zero
            theirs.load_state_dict(layer.state_dict(), strict=False)
    ours.teacher.copy_from(ours)


def lightly_byol(size: Size) -> LightlyBYOL:
    network = MODELS.build(backbone(size, 'BN'))
    return LightlyBYOL(network, size.features, size.hidden).train()


def lightly_step(model: LightlyBYOL, batch: dict) -> Step:
    return byol_step(model, batch, lars(batch))


def lars(batch: dict) -> dict:
    """Return settings of LARS, with mmpretrain's learning rate of 4.8 for 4096 images scaled to the batch."""
    return dict(lr=4.8 * len(batch['inputs'][0]) / 4096, momentum=0.9, weight_decay=1e-6)


def our_step(model: BaseModel, batch: dict, **fast) -> Step:
    """Return a step with mmairl's optimizer wrapper and the hooks that act in every step.

    `fast` has the items of a config's key `fast`.
    """
    cfg = ConfigDict(
        fast=fast,
        model=dict(data_preprocessor=dict(type='ViewPreprocessor')),
        optim_wrapper=dict(type='AutocastOptimWrapper', optimizer=dict(type='LARS', **lars(batch))),
    )
    set_fast_keys(cfg)
    if cfg.model.data_preprocessor.get('channels_last'):
        model.data_preprocessor.layout = torch.channels_last
    make_fast(model, fast)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    return training_loop(
        model, wrapper, batch, [AsyncRuntimeInfoHook(), MomentumHook(), QueueHook()]
    )


def their_step(model: BaseModel, batch: dict) -> Step:
    """Return a step of mmpretrain's BYOL config: LARS, without adaptation or decay of biases and norm layers."""
    excluded = dict(decay_mult=0, lars_exclude=True)
    keys = {'bn': excluded, 'bias': excluded, 'downsample.1': excluded}
    config = dict(
        type='mmengine.OptimWrapper',
        optimizer=dict(type='mmpretrain.LARS', **lars(batch)),
        paramwise_cfg=dict(custom_keys=keys),
        constructor='mmengine.DefaultOptimWrapperConstructor',
    )
    wrapper = build_optim_wrapper(model, config)
    return training_loop(model, wrapper, batch, [PlatformRuntimeInfoHook()])


def training_loop(model: BaseModel, wrapper: OptimWrapper, batch: dict, hooks: list) -> Step:
    """Return a function that runs one iteration of the training loop, with a minimal stand-in for the runner."""
    hub = MessageHub.get_instance(f'step{id(model)}')
    # mmpretrain's teacher reads max_iters for its momentum schedule.
    MessageHub.get_current_instance().update_info('max_iters', STEPS)
    parts = dict(model=model, optim_wrapper=wrapper, message_hub=hub)
    runner = SimpleNamespace(**parts, hooks=hooks, iter=0, max_iters=STEPS, seed=0)
    for hook in hooks:
        # mmengine's hook requires attributes of a real runner.
        if not isinstance(hook, PlatformRuntimeInfoHook):
            hook.before_train(runner)

    def one() -> Tensor:
        outputs = model.train_step(batch, wrapper)
        for hook in hooks:
            hook.after_train_iter(runner, batch_idx=runner.iter, data_batch=batch, outputs=outputs)
        runner.iter += 1
        return outputs['loss']

    return with_changes(model, one)
