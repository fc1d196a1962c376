"""The optimizations of a training step, in the order in which they apply. Each is a key of the config's `fast`.

The optimizations do not change the method::

    fast = dict(
        precision='bfloat16',  # type of matrix products; also 'float16', 'tf32', or 'float32' (exact, without TF32)
        channels_last=True,    # memory layout of images and weights that suits the convolution kernels
        checkpointing=False,   # recompute blocks in the backward pass: less memory, a third more time
        compile=True,          # fuse kernels by torch.compile; True or its options (mode='reduce-overhead' adds CUDA graphs)
        fused=True,            # SGD or Adam in one pass over the memory
        fused_norm=False,      # on GPUs, batch norm, residual and ReLU of ResNets in fewer passes over the memory
    )

Without `precision`, torch's defaults apply: TF32 for convolutions on GPUs that support it, but not for matrix products.
Batch-norm statistics, softmax, the teacher's average and the queue are always float32.

Other optimizations are always on: views are augmented in batches (data/transforms.py), teacher and LARS step all tensors at
once, InfoNCE does not store its logits (models/heads), gradients are exchanged during the backward pass
(engine/distributed.py), and the host never waits for the device between two log lines (hooks/progress.py,
optim/autocast.py).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.dist import get_world_size
from mmengine.logging import print_log
from mmpretrain.models.backbones.resnet import BasicBlock, Bottleneck, ResNet
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmairl.errors import UserError
from mmairl.models.backbones import blocks
from mmairl.models.norm import SyncBN, norms_of, views_in_batch

PRECISIONS = ('float32', 'tf32', 'bfloat16', 'float16')
# Maximum number of compiled forms of a block: by width, stride, size, side (student or teacher) and mode. With torch's
# limit of 8, the student of a ResNet-50 would run eagerly.
FORMS = 128
# Torch's compile modes that use CUDA graphs.
GRAPHS = ('reduce-overhead', 'max-autotune')
FUSED = ('SGD', 'Adam', 'AdamW')  # optimizers with a fused implementation in torch


def set_fast_keys(cfg: ConfigDict) -> None:
    """Set the keys that follow from `fast`, before anything is built. Keys that the config sets take precedence."""
    fast = cfg.get('fast')
    if not fast:
        return
    _check(fast)
    if fast.get('precision') in ('bfloat16', 'float16'):
        cfg.optim_wrapper.setdefault('dtype', fast['precision'])
    if uses_graphs(fast) and cfg.optim_wrapper.get('accumulative_counts', 1) > 1:
        raise UserError(
            f"fast.compile: CUDA graphs overwrite accumulated gradients ('{fast['compile']}'); set fast.compile=True, or "
            'optim_wrapper.accumulative_counts=1',
            code='graphs-with-accumulation',
        )
    preprocessor = cfg.model.get('data_preprocessor') or {}
    if fast.get('channels_last') and preprocessor.get('type') == 'ViewPreprocessor':
        preprocessor.setdefault('channels_last', True)
    if fast.get('fused') and cfg.optim_wrapper.optimizer.type in FUSED and not cfg.get('strategy'):
        # torch has no fused SGD for sharded weights.
        cfg.optim_wrapper.optimizer.setdefault('fused', True)


def make_fast(model: nn.Module, fast: dict | None = None) -> nn.Module:
    """Optimize the model in place and return it. Its parameters keep their names.

    Example:
        >>> network = make_fast(nn.Sequential(nn.Conv2d(3, 8, 3)), dict(channels_last=True))
        >>> network[0].weight.is_contiguous(memory_format=torch.channels_last)
        True
    """
    fast = fast or {}
    _check(fast)
    lay_out(model, fast)
    if fast.get('fused_norm'):
        fuse_norms(model)
    if fast.get('checkpointing'):
        checkpoint_blocks(model)
    if fast.get('compile'):
        options = {} if fast['compile'] is True else dict(fast['compile'])
        compile_parts(model, options)
    return model


def _check(fast: dict) -> None:
    if fast.get('precision', 'float32') not in PRECISIONS:
        raise UserError(
            f"fast.precision: unknown precision ('{fast['precision']}'); set one of {', '.join(PRECISIONS)}",
            code='unknown-precision',
        )
    if fast.get('checkpointing') and fast.get('compile'):
        raise UserError(
            'fast.checkpointing: cannot be combined with fast.compile; set one of them to False',
            code='exclusive-options',
        )
    if fast.get('fused_norm') and (fast.get('compile') or not fast.get('channels_last')):
        raise UserError(
            'fast.fused_norm: requires fast.channels_last and excludes fast.compile; set channels_last=True and compile=False',
            code='fused-norm-options',
        )


def uses_graphs(fast: dict) -> bool:
    return isinstance(fast.get('compile'), dict) and fast['compile'].get('mode') in GRAPHS


def lay_out(model: nn.Module, fast: dict | None) -> None:
    """Store the weights of convolutions channels last if `fast` sets `channels_last`."""
    if (fast or {}).get('channels_last'):
        model.to(memory_format=torch.channels_last)


def fuse_norms(model: nn.Module) -> None:
    """Make SyncBN use its Triton kernels on GPUs, and include the residual and ReLU of ResNets in them."""
    for layer in norms_of(model):
        layer.fused = True
    for block in model.modules():
        stem = isinstance(block, ResNet) and not block.deep_stem
        if stem and isinstance(block.norm1, SyncBN) and isinstance(block.relu, nn.ReLU):
            block.norm1.relu = True
            block.relu = nn.Identity()
        if not isinstance(block, BasicBlock | Bottleneck):
            continue
        plain = isinstance(block.drop_path, nn.Identity) and isinstance(block.relu, nn.ReLU)
        if plain and all(isinstance(norm, SyncBN) for norm in norms_of(block)):
            block.forward = partial(fused_forward, block)


def fused_forward(block: nn.Module, x: Tensor) -> Tensor:
    """Run a block of mmpretrain's ResNet whose norms add the residual and apply ReLU."""
    identity = x if block.downsample is None else block.downsample(x)
    last = 3 if isinstance(block, Bottleneck) else 2
    for number in range(1, last + 1):
        x = getattr(block, f'conv{number}')(x)
        norm = getattr(block, f'norm{number}')
        x = norm(x, identity if number == last else None, relu=True)
    return x


def checkpoint_blocks(model: nn.Module) -> None:
    """Make each block of the student's backbone keep only its input for the backward pass."""
    for block in blocks(model.backbone):
        # Partial functions, because a deep copy of a block then runs the copied block.
        forward = block.__dict__.get('forward') or partial(type(block).forward, block)
        block.forward = partial(recomputed, block, forward)


def recomputed(block: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Run a block's forward pass and keep only its input; the backward pass runs the block again.

    mmpretrain's `with_cp` and mmengine's `activation_checkpointing` are not used. They count each batch twice in the
    running statistics, and they fail under DDP if a block receives two views before the backward pass.
    """
    if not torch.is_grad_enabled():
        return run(x)
    views = max((getattr(layer, 'views', 1) for layer in norms_of(block)), default=1)
    return checkpoint(
        run,
        x,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), same_statistics(block, views)),
    )


@contextmanager
def same_statistics(block: nn.Module, views: int) -> Iterator[None]:
    """Keep batch norm's running statistics unchanged, because they include this batch already."""
    norms = norms_of(block)
    before = [(layer.momentum, layer.num_batches_tracked.clone()) for layer in norms]
    for layer in norms:
        layer.momentum = 0.0
    try:
        with views_in_batch(norms, views):
            yield
    finally:
        for layer, (momentum, count) in zip(norms, before):
            layer.momentum = momentum
            layer.num_batches_tracked.copy_(count)


def compile_parts(model: nn.Module, options: dict) -> None:
    """Let torch compile the parts of a model when they first run, and log the parts that stay eager."""
    import torch._dynamo  # takes a second

    if options.get('mode') in GRAPHS:
        # This keeps the outputs of CUDA graphs, which teacher, student and loss of a step share, valid until the model's
        # next forward pass.
        model.register_forward_pre_hook(lambda *_: torch.compiler.cudagraph_mark_step_begin())

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, FORMS)
    for layer in model.modules():
        # mmpretrain's drop rates are NumPy numbers, at which torch would split the graph.
        if isinstance(getattr(layer, 'drop_prob', None), np.floating):
            layer.drop_prob = float(layer.drop_prob)
    parts = list(compiled_parts(model))
    for part in parts:
        # Stages share their code, so with dynamic shapes torch would compile one form for all of them.
        part.compile(**{'dynamic': False, **options})
    several = ', each SyncBN and layers next to it' if get_world_size() > 1 else ''
    print_log(
        f'fast.compile: {len(parts)} parts are compiled when they first run; eager: the head, the queue, the '
        f"teacher's average, and layers outside of blocks{several}",
        logger='current',
    )


def compiled_parts(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules to compile: the stages or blocks and other children of both backbones, projectors, and predictors.

    A backbone is not compiled as one module, because torch compiles a module again whenever a hook is added or removed,
    and HealthHook adds hooks to it.
    """
    for side in (model, getattr(model, 'teacher', None)):
        for child in getattr(side, 'backbone', nn.Module()).children():
            yield from child.children() if isinstance(child, nn.ModuleList) else [child]
        for name in ('projector', 'predictor'):
            if getattr(side, name, None) is not None:
                yield getattr(side, name)
