"""Whether a run fits on a GPU, before the job is queued: python -m mmairl.engine.memory CONFIG --gpus 8 [--per-gpu 64]

The network is built without storage, and one training step runs on tensors that have a shape and no numbers, with the batch
that a GPU gets: what is held at the fullest moment of that step is counted. What weights, gradients, optimizer and teacher
take is arithmetic, and ZeRO divides it. Measured on two processes, the total is right to 1 % for DDP; for ZeRO it is an upper
bound, 9 % above what was held at stage 3. Not counted: the device's context (half a gigabyte), the libraries' work space, gaps
between allocations.
"""

import argparse
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from mmengine.config import Config
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore  # there is no public one
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmairl.configs import load_config
from mmairl.data.views import channels_of
from mmairl.engine.fast import make_fast, set_fast_keys
from mmairl.engine.launch import register
from mmairl.engine.plan import plan
from mmairl.errors import UserError, one_sentence_errors
from mmairl.flags import ConfigOptions, positive
from mmairl.models.stages import blocks
from mmairl.registry import MODELS

STATE = dict(SGD=4, LARS=4, Adam=8, AdamW=8)  # bytes a parameter: one float32 or two
GIB = 2**30


class WithoutStorage(TorchFunctionMode):
    """Weights, which torch's layers make by `torch.empty`, take no memory."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.empty:
            kwargs = {**(kwargs or {}), 'device': 'meta'}
        return func(*args, **(kwargs or {}))


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors made under it that still live: `now`, and at the fullest moment, `peak`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: weakref.WeakSet = weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if not isinstance(tensor, Tensor) or tensor.is_meta:
                continue
            if hasattr(tensor, 'device_mesh'):
                tensor = tensor.to_local()  # a DTensor has no memory but its part's
            if (storage := tensor.untyped_storage()) not in self.known:
                self.known.add(storage)
                self._change(storage.nbytes())
                weakref.finalize(storage, self._change, -storage.nbytes())
        return made

    def _change(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


def build(cfg: Config) -> nn.Module:
    """The config's network, without storage; compilation is left out, which changes what is kept by little."""
    with WithoutStorage():
        model = MODELS.build(cfg.model)
    return make_fast(model, {**(cfg.get('fast') or {}), 'compile': False})


@contextmanager
def one_of(gpus: int) -> Iterator[None]:
    """The first of so many processes, whose exchanges take their buffers and move nothing."""
    if gpus > 1:
        dist.init_process_group('fake', store=FakeStore(), rank=0, world_size=gpus)
    try:
        yield
    finally:
        if gpus > 1:
            dist.destroy_process_group()


def activations(model: nn.Module, views: int, batch: int, size: int, half: bool = False, gpus: int = 1) -> int:
    """Bytes beside weights and gradients at the fullest moment of a step of `batch` images; the step computes nothing."""
    with one_of(gpus), FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device='cpu')
        channels = channels_of(model.backbone) or 3
        return fullest_moment(model, [torch.empty(batch, channels, size, size) for _ in range(views)], half)


def fullest_moment(model: nn.Module, images: list[Tensor], half: bool = False) -> int:
    """What a step on these images takes at most, beside the model's own tensors.

    It is more than what the forward pass keeps. A weight is used once for each view, and the gradient that the last view
    has left waits until that of the first is there to be added: in all, up to another set of gradients.
    """
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
    own = [*model.parameters(), *model.buffers()]
    live = LiveBytes()
    live.known.update(tensor.untyped_storage() for one in own for tensor in (one, one.grad) if tensor is not None)
    with live, torch.autocast('cpu', torch.bfloat16, enabled=half):
        model(images, mode='loss')['loss'].backward()
    return live.peak + sum(image.nbytes for image in images)


def shares(model: nn.Module, optimizer: str, gpus: int, accumulated: bool = False) -> dict[str, dict[str, float]]:
    """Bytes of each part that each strategy keeps on one of so many GPUs, beside activations: float32 throughout.

    Under ZeRO all that lasts is divided. `gathered` is what is whole for a time: at stages 1 and 2 all weights, and a block's
    gradients before they are divided (all gradients at stage 1, if batches are accumulated); at stage 3 the block at work and
    the one on its way instead of all weights.
    """
    if optimizer not in STATE:
        raise UserError(
            f"how much '{optimizer}' keeps is not known here; optim_wrapper.optimizer may be {', '.join(STATE)}"
        )
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    fixed = sum(p.nbytes for p in model.parameters() if not p.requires_grad)
    block = max((sum(p.nbytes for p in block.parameters()) for block in blocks(model.backbone)), default=trained)
    lasting = dict(parameters=trained, gradients=trained, optimizer=STATE[optimizer] / 4 * trained, teacher=fixed)
    divided = {part: size / gpus for part, size in lasting.items()}
    buffers = sum(b.nbytes for b in model.buffers())
    gathered = {
        'ZeRO-1': trained + fixed + (trained if accumulated else 2 * block),
        'ZeRO-2': trained + fixed + 2 * block,
        'ZeRO-3': 4 * block,
    }
    found = {stage: dict(divided, buffers=buffers, gathered=whole) for stage, whole in gathered.items()}
    return {'DDP': dict(lasting, buffers=buffers, gathered=0), **found}


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='a config file, such as configs/large/mocov2plus_vit_l16_300e.py')
    parser.add_argument('--gpus', type=positive, default=8)
    parser.add_argument(
        '--per-gpu', type=positive, help='images a GPU holds at once (default: the total batch, shared)'
    )
    parser.add_argument('--size', type=positive, default=224, help="the views' side in pixels")
    parser.add_argument('--cfg-options', nargs='+', action=ConfigOptions, help='override config keys, as key=value')
    args = parser.parse_args()
    register()
    cfg = load_config(args.config, args.cfg_options)
    per_gpu = args.per_gpu or max(1, cfg.total_batch_size // args.gpus)
    accumulation, _ = plan(cfg, args.gpus, per_gpu)
    set_fast_keys(cfg)
    model, views = build(cfg), len(cfg.train_dataloader.dataset.get('views') or [None, None])
    columns = shares(model, cfg.optim_wrapper.optimizer.type, args.gpus, accumulation > 1)
    trained, teacher = (columns['DDP'][part] / 4e6 for part in ('parameters', 'teacher'))
    print(
        f'{trained:.1f} million parameters, {teacher:.1f} of the teacher; {cfg.optim_wrapper.optimizer.type}; '
        f'{views} views of {per_gpu} images of {args.size} pixels on each of {args.gpus} GPUs'
    )
    step = activations(model, views, per_gpu, args.size, cfg.optim_wrapper.get('dtype') == 'bfloat16', args.gpus)
    for parts in columns.values():
        parts['activations'] = step
        parts['total'] = sum(parts.values())
    print(f'{"GiB on each GPU":<16}' + ''.join(f'{name:>9}' for name in columns))
    for part in columns['DDP']:
        print(f'{part:<16}' + ''.join(f'{parts[part] / GIB:>9.2f}' for parts in columns.values()))


if __name__ == '__main__':
    main()
