"""Speed up training steps or reduce their memory, as the section `fast` of a config requests.

Each key of `fast` is an optimization that does not change the method. This example lists all keys::

    fast = dict(
        precision='bfloat16',  # type of matrix products; also 'float16', 'tf32', or 'float32' (exact, without TF32)
        channels_last=True,    # memory layout of images and weights that suits the convolution kernels
        checkpointing=False,   # recompute blocks in the backward pass: less memory, a third more time
        compile=True,          # fuse kernels by torch.compile; True or its options (mode='reduce-overhead' adds CUDA graphs)
        fused=True,            # SGD or Adam in one pass over the memory
    )

Without `precision`, torch's defaults apply: TF32 for convolutions on GPUs that support it, but not for matrix products.
Batch-norm statistics, softmax, the teacher's average and the queue are always float32.

Other optimizations are always on: views made on the device are augmented in batches (data/transforms.py), the teacher and
LARS update all tensors at once, InfoNCE does not store its logits (models/heads), gradients are exchanged during the backward
pass (engine/distributed.py), and the GPU does not idle while the CPU checks the loss (optim/autocast.py) or logs it
(hooks/progress.py).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.dist import get_world_size
from mmengine.logging import print_log
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmairl.errors import UserError
from mmairl.models.backbones import blocks
from mmairl.models.norm import norms_of

PRECISIONS = ('float32', 'tf32', 'bfloat16', 'float16')
# Torch compiles a block again for each width, stride, image size, side (student or teacher) and mode (training or
# evaluation). FORMS is the maximum number of compiled versions. With torch's own limit of 8, some blocks of a ResNet-50 would
# run without compilation.
FORMS = 128
# Torch's compile modes that use CUDA graphs.
GRAPHS = ('reduce-overhead', 'max-autotune')
# Torch has a fused implementation of these optimizers.
FUSED = ('SGD', 'Adam', 'AdamW')


def set_fast_keys(cfg: ConfigDict) -> None:
    """Set the config keys that follow from the section `fast`. Keys that the config itself sets stay as they are."""
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
        # Torch has no fused SGD for sharded weights.
        cfg.optim_wrapper.optimizer.setdefault('fused', True)


def make_fast(model: nn.Module, fast: dict | None = None) -> nn.Module:
    """Apply the optimizations in `fast` to a model in place, and return the model. Its parameters keep their names.

    Example:
        >>> network = make_fast(nn.Sequential(nn.Conv2d(3, 8, 3)), dict(channels_last=True))
        >>> network[0].weight.is_contiguous(memory_format=torch.channels_last)
        True
    """
    fast = fast or {}
    _check(fast)
    lay_out(model, fast)
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


def uses_graphs(fast: dict) -> bool:
    return isinstance(fast.get('compile'), dict) and fast['compile'].get('mode') in GRAPHS


def lay_out(model: nn.Module, fast: dict | None) -> None:
    """Change the memory layout of convolution weights to channels-last if `fast` sets `channels_last`."""
    if (fast or {}).get('channels_last'):
        model.to(memory_format=torch.channels_last)


def checkpoint_blocks(model: nn.Module) -> None:
    """Make each block of the student's backbone store only its input, and run again in the backward pass."""
    for block in blocks(model.backbone):
        # With a partial function, a deep copy of the block runs its own layers. With a closure, it would run the layers of the
        # original block.
        forward = block.__dict__.get('forward') or partial(type(block).forward, block)
        block.forward = partial(recomputed, block, forward)


def recomputed(block: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Run the forward pass of a block and store only its input. The backward pass runs the block again.

    mmpretrain's `with_cp` and mmengine's `activation_checkpointing` are not used, because both count each batch twice in the
    running statistics and fail under DDP if a block receives two views before the backward pass.
    """
    if not torch.is_grad_enabled():
        return run(x)
    return checkpoint(
        run,
        x,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), same_statistics(block)),
    )


@contextmanager
def same_statistics(block: nn.Module) -> Iterator[None]:
    """Keep batch norm's running statistics unchanged while a block runs again. They already include the batch."""
    norms = norms_of(block)
    before = [(layer.momentum, layer.num_batches_tracked.clone()) for layer in norms]
    for layer in norms:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, (momentum, count) in zip(norms, before):
            layer.momentum = momentum
            layer.num_batches_tracked.copy_(count)


def compile_parts(model: nn.Module, options: dict) -> None:
    """Make torch compile the parts of a model when they first run, and log which parts are not compiled."""
    # This import takes a second, so it is not at the top of the module.
    import torch._dynamo

    if options.get('mode') in GRAPHS:
        # Teacher, student and loss use outputs of CUDA graphs until the end of a step. With this hook, these outputs stay
        # valid until the next forward pass of the model.
        model.register_forward_pre_hook(lambda *_: torch.compiler.cudagraph_mark_step_begin())

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, FORMS)
    for layer in model.modules():
        # mmpretrain stores drop rates as NumPy numbers. Torch would split the graph at each of them.
        if isinstance(getattr(layer, 'drop_prob', None), np.floating):
            layer.drop_prob = float(layer.drop_prob)
    parts = list(compiled_parts(model))
    for part in parts:
        # All stages of a backbone run the same code. With dynamic shapes, torch would compile one general version for all of
        # them instead of one version for each.
        part.compile(**{'dynamic': False, **options})
    several = ', SyncBN layers, layers next to SyncBN layers' if get_world_size() > 1 else ''
    print_log(
        f'fast.compile: torch compiles {len(parts)} parts of the model when they first run; it does not compile these '
        f"parts: the head, the queue, the teacher's average, layers outside of blocks{several}",
        logger='current',
    )


def compiled_parts(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules of student and teacher to compile: parts of the backbone, the projector and the predictor.

    A backbone is not compiled as one module, because HealthHook adds hooks to it and removes them again. Torch would compile
    the whole backbone after each of these changes.
    """
    for side in (model, getattr(model, 'teacher', None)):
        for child in getattr(side, 'backbone', nn.Module()).children():
            yield from child.children() if isinstance(child, nn.ModuleList) else [child]
        for name in ('projector', 'predictor'):
            if getattr(side, name, None) is not None:
                yield getattr(side, name)
