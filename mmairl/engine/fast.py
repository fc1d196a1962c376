"""How a step is made fast, in order. Each is one line of a config's `fast`, and none of them changes the method::

    fast = dict(
        precision='bfloat16',  # products in half the width; also 'float16', 'tf32', or 'float32': exact, no TF32
        channels_last=True,    # images and weights lie as the convolution kernels want them
        checkpointing=False,   # blocks are computed again in the backward pass: memory for a third more time
        compile=True,          # kernels fused by torch.compile; True, or its options
        fused=True,            # SGD or Adam in one pass over the memory
    )

Without `precision` torch's own settings hold, which take TF32 for convolutions where the GPU has it, and not for products.

`settle` is called on the config before anything is built from it, `make_fast` on the network before it is wrapped for
several processes, since gradients are laid out like the weights. Batch-norm statistics, softmax, the teacher's average and
the queue stay in float32 throughout. What needs no switch: views augmented in batches (data/transforms.py), teacher and LARS in
multi-tensor steps (models/teacher.py, optim/lars.py), InfoNCE without its logits (models/contrast.py), gradients exchanged
during the backward pass (engine/distributed.py), a loop that never waits for the device (engine/history.py,
optim/finite.py; on several GPUs torch's SyncBN does, in every layer).
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from mmengine.config import ConfigDict
from mmengine.dist import get_world_size
from mmengine.logging import print_log
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmairl.errors import UserError
from mmairl.models.batchnorm import SyncBN

PRECISIONS = ('float32', 'tf32', 'bfloat16', 'float16')
KEYS = ('precision', 'channels_last', 'checkpointing', 'compile', 'fused')
FUSED = ('SGD', 'Adam', 'AdamW')  # torch's optimizers with such a form


def settle(cfg: ConfigDict) -> None:
    """Turn `fast` into the keys of the parts that it concerns; one that the config itself sets there wins."""
    wanted = cfg.get('fast')
    if not wanted:
        return
    _check(wanted)
    precision = wanted.get('precision')
    if precision is not None:
        torch.set_float32_matmul_precision('high' if precision == 'tf32' else 'highest')
        torch.backends.cudnn.allow_tf32 = precision != 'float32'
    if precision in ('bfloat16', 'float16'):
        cfg.optim_wrapper.setdefault('dtype', precision)
    if wanted.get('fused') and cfg.optim_wrapper.optimizer.type in FUSED:
        cfg.optim_wrapper.optimizer.setdefault('fused', True)
    preprocessor = cfg.model.get('data_preprocessor') or {}
    if wanted.get('channels_last') and preprocessor.get('type') == 'ViewPreprocessor':
        preprocessor.setdefault('channels_last', True)


def make_fast(model: nn.Module, fast: dict | None = None) -> nn.Module:
    """The network with `fast`'s layout, checkpointing and compilation; its parameters and their names are the same.

    >>> network = make_fast(nn.Sequential(nn.Conv2d(3, 8, 3)), dict(channels_last=True))
    >>> network[0].weight.is_contiguous(memory_format=torch.channels_last)
    True
    """
    fast = fast or {}
    _check(fast)
    lay_out(model, fast)
    if fast.get('checkpointing'):
        for block in blocks(model.backbone):
            block.forward = Recomputed(block)
    if fast.get('compile') and not exchanges_statistics(model):
        options = {} if fast['compile'] is True else dict(fast['compile'])
        for part in encoders(model):
            part.forward = Compiled(part, **options)
    return model


def lay_out(model: nn.Module, fast: dict | None) -> None:
    """Weights of convolutions as channels last if `fast` says so."""
    if (fast or {}).get('channels_last'):
        model.to(memory_format=torch.channels_last)


def exchanges_statistics(model: nn.Module) -> bool:
    """Whether the forward pass holds collectives, between which there is little to fuse and which are not compiled right.

    Tracing them gave other gradients than running them (two processes, gloo), so that such a network runs as it is written.
    """
    if get_world_size() == 1 or not any(isinstance(layer, SyncBN) for layer in model.modules()):
        return False
    print_log('fast.compile is left out: SyncBN exchanges statistics between the processes in every layer', 'current')
    return True


def _check(fast: dict) -> None:
    for key in fast:
        if key not in KEYS:
            raise UserError(f"the config's fast has no key '{key}'; it knows {', '.join(KEYS)}")
    if fast.get('precision', 'float32') not in PRECISIONS:
        raise UserError(f"fast.precision='{fast['precision']}' is not known; say one of {', '.join(PRECISIONS)}")
    if fast.get('checkpointing') and fast.get('compile'):
        raise UserError('fast.checkpointing and fast.compile exclude each other: set one of them to False')


def encoders(model: nn.Module) -> Iterator[nn.Module]:
    """The student's parts and the teacher's."""
    for side in (model, getattr(model, 'teacher', None)):
        for name in ('backbone', 'projector', 'predictor'):
            if getattr(side, name, None) is not None:
                yield getattr(side, name)


def blocks(backbone: nn.Module) -> Iterator[nn.Module]:
    """The blocks that the backbone's stages, or a transformer's one list, are made of."""
    for part in backbone.children():
        if isinstance(part, nn.Sequential | nn.ModuleList):
            yield from part.children()


class Compiled:
    """A module's forward pass, compiled where it is first called; the module's hooks stay outside.

    Compiling in place keeps the names in the checkpoint, which a compiled module would put `_orig_mod.` before.
    `nn.Module.compile` keeps them too, but compiles the hooks along, and again for each hook that comes and goes.
    """

    def __init__(self, module: nn.Module, **options) -> None:
        self.module, self.options = module, options
        self.run: Callable = torch.compile(type(module).forward.__get__(module), **options)

    def __call__(self, *inputs):
        return self.run(*inputs)

    def __deepcopy__(self, memo: dict) -> 'Compiled':
        return Compiled(copy.deepcopy(self.module, memo), **self.options)


class Recomputed:
    """A block's forward pass of which only the input is kept; the backward pass computes it again.

    mmpretrain's `with_cp` and mmengine's `activation_checkpointing` count each batch twice in the running statistics, and
    their kind of checkpoint fails under DDP where a block sees two views before the backward pass.
    """

    def __init__(self, block: nn.Module) -> None:
        self.block = block

    def __call__(self, x: Tensor) -> Tensor:
        run = type(self.block).forward.__get__(self.block)
        if not torch.is_grad_enabled():
            return run(x)
        return checkpoint(run, x, use_reentrant=False, context_fn=lambda: (nullcontext(), seen(self.block)))

    def __deepcopy__(self, memo: dict) -> 'Recomputed':
        return Recomputed(copy.deepcopy(self.block, memo))


@contextmanager
def seen(block: nn.Module) -> Iterator[None]:
    """Batch norm's running statistics stand still: they have had this batch."""
    norms = [layer for layer in block.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    before = [(layer.momentum, layer.num_batches_tracked.clone()) for layer in norms]
    for layer in norms:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, (momentum, count) in zip(norms, before):
            layer.momentum = momentum
            layer.num_batches_tracked.copy_(count)
