"""Speed up training steps or reduce their memory, as the section `fast` of a config requests.

Each key of `fast` is an optimization that does not change the method. The runtime config sets the first three::

    fast = dict(
        precision='tf32',      # type of matrix products; 'bfloat16', 'float16', or 'float32' (exact, without TF32)
        channels_last=True,    # memory layout of images and weights that suits the convolution kernels
        fused=True,            # SGD or Adam in one pass over the memory
        compile=True,          # fuse kernels by torch.compile; True or its options
        checkpointing=True,    # recompute blocks in the backward pass: less memory, a third more time
    )

Batch-norm statistics, softmax, the teacher's average and the queue are always float32.
"""

from collections.abc import Iterator
from functools import partial

import torch
from mmengine.config import ConfigDict
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmairl.errors import UserError
from mmairl.models.backbones import blocks
from mmairl.models.norm import norms_of

KEYS = {'precision', 'channels_last', 'fused', 'compile', 'checkpointing'}
PRECISIONS = ('float32', 'tf32', 'bfloat16', 'float16')
# Torch compiles a block again for each width, stride, image size, side (student or teacher) and mode (training or
# evaluation). FORMS is the maximum number of compiled versions. With torch's own limit of 8, some blocks of a ResNet-50 would
# run without compilation.
FORMS = 128
# Torch has a fused implementation of these optimizers.
FUSED = ('SGD', 'Adam', 'AdamW')


def set_fast_keys(cfg: ConfigDict) -> None:
    """Set the config keys that follow from the section `fast`. Keys that the config itself sets stay as they are."""
    fast = cfg.get('fast') or {}
    if unknown := fast.keys() - KEYS:
        raise UserError(
            f"fast has no key '{unknown.pop()}'; use {', '.join(sorted(KEYS))}", code='unknown-key'
        )
    if fast.get('precision', 'tf32') not in PRECISIONS:
        raise UserError(
            f"fast.precision: unknown precision ('{fast['precision']}'); set one of {', '.join(PRECISIONS)}",
            code='unknown-precision',
        )
    wrapper = cfg.optim_wrapper
    if fast.get('precision') in ('bfloat16', 'float16'):
        wrapper.setdefault('dtype', fast['precision'])
    # Torch has no fused SGD for sharded weights. If a fused step with float16 is skipped, the momentum may be undefined.
    can_fuse = wrapper.get('dtype') != 'float16' and not cfg.get('strategy')
    if fast.get('fused') and can_fuse and wrapper.optimizer.get('type') in FUSED:
        wrapper.optimizer.setdefault('fused', True)


def make_fast(model: nn.Module, fast: dict) -> nn.Module:
    """Apply the optimizations in `fast` to a model in place, and return the model. Its parameters keep their names.

    Example:
        >>> network = make_fast(nn.Sequential(nn.Conv2d(3, 8, 3)), dict(channels_last=True))
        >>> network[0].weight.is_contiguous(memory_format=torch.channels_last)
        True
    """
    lay_out(model, fast)
    if fast.get('checkpointing'):
        checkpoint_blocks(model.backbone)
    if fast.get('compile'):
        compile_parts(model, {} if fast['compile'] is True else dict(fast['compile']))
    return model


def lay_out(model: nn.Module, fast: dict | None) -> None:
    """Use the channels-last layout for images and weights if `fast` sets `channels_last`.

    If images and weights had different layouts, DDP would copy gradients in every step.
    """
    if (fast or {}).get('channels_last'):
        model.to(memory_format=torch.channels_last)
        for part in model.modules():
            # This attribute of ViewPreprocessor is the layout of the batches.
            if hasattr(part, 'layout'):
                part.layout = torch.channels_last


def checkpoint_blocks(backbone: nn.Module) -> None:
    """Make each block of a backbone store only its input, and run again in the backward pass."""
    if norms_of(backbone):
        raise UserError(
            'fast.checkpointing: batch norm would count each batch twice in its running statistics; use a network without '
            'batch norm, or fast.precision and a smaller --per-gpu to save memory',
            code='checkpointing-batch-norm',
        )
    for block in blocks(backbone):
        # With a partial function, a deep copy of the block runs its own layers. With a closure, it would run the layers of the
        # original block.
        block.forward = partial(
            checkpoint, partial(type(block).forward, block), use_reentrant=False
        )


def compile_parts(model: nn.Module, options: dict) -> None:
    """Make torch compile the parts of a model when they first run."""
    # This import takes a second, so it is not at the top of the module.
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, FORMS)
    for part in compiled_parts(model):
        # All stages of a backbone run the same code. With dynamic shapes, torch would compile one general version for all of
        # them instead of one version for each.
        part.compile(**{'dynamic': False, **options})


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
