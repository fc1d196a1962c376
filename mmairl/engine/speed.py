"""How a step is made fast, in order. Each line of a config's `fast` is one of these, and none of them changes the method::

    fast = dict(
        precision='bfloat16',  # products in half the width; also 'float16', 'tf32', or 'float32': exact, no TF32
        channels_last=True,    # images and weights lie in memory as the convolution kernels want them
        checkpointing=False,   # blocks are computed again in the backward pass: less memory, a third more time
        compile=True,          # kernels fused by torch.compile; True, or its options: mode='reduce-overhead' adds CUDA graphs
        fused=True,            # SGD or Adam in one pass over the memory
    )

Without `precision` torch's own settings hold: TF32 for convolutions where the GPU has it, and not for products. Batch-norm
statistics, softmax, the teacher's average and the queue are float32 throughout. Always on, without a switch: views augmented
in batches (data/transforms.py), multi-tensor teacher and LARS, InfoNCE without its logits (models/heads.py), gradients
exchanged during the backward pass (engine/distributed.py), and no wait for the device between two log lines
(hooks/log.py, optim/autocast.py).
"""

from collections.abc import Iterator
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
from mmairl.models.norm import PASS, norms_of, pass_of

PRECISIONS = ('float32', 'tf32', 'bfloat16', 'float16')
# Compiled forms of one block: by width, stride, size, side, mode; torch's 8 leave the student of a ResNet-50 eager.
FORMS = 128
GRAPHS = ('reduce-overhead', 'max-autotune')  # torch's modes that replay what is compiled as CUDA graphs
FUSED = ('SGD', 'Adam', 'AdamW')  # torch's optimizers with such a form


def set_fast_keys(cfg: ConfigDict) -> None:
    """Before anything is built: set the keys that `fast` stands for; one that the config itself sets wins."""
    fast = cfg.get('fast')
    if not fast:
        return
    _check(fast)
    if fast.get('precision') in ('bfloat16', 'float16'):
        cfg.optim_wrapper.setdefault('dtype', fast['precision'])
    preprocessor = cfg.model.get('data_preprocessor') or {}
    if fast.get('channels_last') and preprocessor.get('type') == 'ViewPreprocessor':
        preprocessor.setdefault('channels_last', True)
    if fast.get('fused') and cfg.optim_wrapper.optimizer.type in FUSED and not cfg.get('strategy'):
        cfg.optim_wrapper.optimizer.setdefault('fused', True)  # torch has no fused SGD for weights in shards


def make_fast(model: nn.Module, fast: dict | None = None) -> nn.Module:
    """Lay out, checkpoint and compile the network in place; its parameters and their names stay the same.

    >>> network = make_fast(nn.Sequential(nn.Conv2d(3, 8, 3)), dict(channels_last=True))
    >>> network[0].weight.is_contiguous(memory_format=torch.channels_last)
    True
    """
    fast = fast or {}
    _check(fast)
    lay_out(model, fast)
    if fast.get('checkpointing'):
        for block in blocks(model.backbone):
            block.forward = partial(recomputed, block)  # a copy of the block gets its own
    if fast.get('compile'):
        compile_parts(model, {} if fast['compile'] is True else dict(fast['compile']))
    return model


def lay_out(model: nn.Module, fast: dict | None) -> None:
    """Store the weights of convolutions channels last if `fast` says so."""
    if (fast or {}).get('channels_last'):
        model.to(memory_format=torch.channels_last)


def compiled_parts(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules to compile: stages or blocks of both backbones and their other children, and whole projectors.

    Not a backbone as one: hooks listen to it, and a compiled module is compiled anew for each hook that comes or goes.
    """
    for side in (model, getattr(model, 'teacher', None)):
        for child in getattr(side, 'backbone', nn.Module()).children():
            yield from child.children() if isinstance(child, nn.ModuleList) else [child]
        for name in ('projector', 'predictor'):
            if getattr(side, name, None) is not None:
                yield getattr(side, name)


def compile_parts(model: nn.Module, options: dict) -> None:
    """Have torch compile these parts when they first run, and say what stays eager.

    What CUDA graphs put out stays until the network's next pass, so teacher, student and loss of a step see the same numbers.
    """
    import torch._dynamo  # takes a second

    if options.get('mode') in GRAPHS:
        model.register_forward_pre_hook(lambda *_: torch.compiler.cudagraph_mark_step_begin())

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, FORMS)
    for layer in model.modules():
        if isinstance(getattr(layer, 'drop_prob', None), np.floating):  # mmpretrain's; a graph ends at numpy's numbers
            layer.drop_prob = float(layer.drop_prob)
    parts = list(compiled_parts(model))
    for part in parts:
        part.compile(**{'dynamic': False, **options})  # stages share their code, and would become one of any shape
    alone = sorted({type(part).__name__ for part in parts if type(part).__module__.startswith('torch.nn.modules')})
    several = ', each SyncBN and what stands alone beside one' if get_world_size() > 1 else ''
    eager = f"the head, the queue, the teacher's average{several}, and layers outside of blocks ({', '.join(alone)})"
    print_log(f'fast.compile: {len(parts)} parts are compiled as they first run; eager stay {eager}', logger='current')


def recomputed(block: nn.Module, x: Tensor) -> Tensor:
    """The block's forward pass, of which only the input is kept; the backward pass computes it again.

    mmpretrain's `with_cp` and mmengine's `activation_checkpointing` count each batch twice in the running statistics, and
    their kind of checkpoint fails under DDP where a block sees two views before the backward pass.
    """
    run = partial(type(block).forward, block)
    if not torch.is_grad_enabled():
        return run(x)
    settings = dict(block=block, views=PASS.views)
    return checkpoint(run, x, use_reentrant=False, context_fn=lambda: (nullcontext(), same_statistics(**settings)))


@contextmanager
def same_statistics(block: nn.Module, views: int) -> Iterator[None]:
    """Batch norm's running statistics stay as they are, for they have seen this batch of so many views."""
    norms = norms_of(block)
    before = [(layer.momentum, layer.num_batches_tracked.clone()) for layer in norms]
    for layer in norms:
        layer.momentum = 0.0
    try:
        with pass_of(views):
            yield
    finally:
        for layer, (momentum, count) in zip(norms, before):
            layer.momentum = momentum
            layer.num_batches_tracked.copy_(count)


def _check(fast: dict) -> None:
    if fast.get('precision', 'float32') not in PRECISIONS:
        raise UserError(f"fast.precision='{fast['precision']}' is not known; say one of {', '.join(PRECISIONS)}")
    if fast.get('checkpointing') and fast.get('compile'):
        raise UserError('fast.checkpointing and fast.compile exclude each other: set one of them to False')
