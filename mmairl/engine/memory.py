"""What a GPU must hold, before one is at hand: python -m mmairl.engine.memory CONFIG --gpus 8 [--per-gpu 64] [--bf16-weights]

The network is built without storage, and one training step runs on tensors that have a shape and no numbers, at the very
batch that a GPU gets. What lies in memory at the fullest moment of that step is counted; what weights, gradients, optimizer
and teacher take is arithmetic, and ZeRO divides it. Not counted is what lies beneath torch: the device's context (half a
gigabyte), the libraries' work space, gaps between allocations.
"""

import argparse
import weakref
from dataclasses import asdict, dataclass, fields, replace

import torch
from mmengine.config import Config, DictAction
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmairl.configs import load_config
from mmairl.engine.fast import make_fast, settle
from mmairl.engine.launch import register
from mmairl.engine.plan import plan
from mmairl.errors import UserError, one_sentence_errors
from mmairl.models.teacher import Teacher
from mmairl.registry import MODELS
from mmairl.sharding.layout import BUCKET

STATE = dict(SGD=4, LARS=4, Adam=8, AdamW=8)  # bytes a parameter: one float32 or two
GIB = 2**30


@dataclass(frozen=True)
class Network:
    """What a network is made of: trained parameters and the teacher's, in numbers; queue and statistics, in bytes."""

    trained: int
    teacher: int
    buffers: int


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU."""

    parameters: float
    gradients: float
    optimizer: float
    teacher: float
    buffers: float
    exchange: float
    activations: float = 0

    @property
    def total(self) -> float:
        return sum(asdict(self).values())


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
            if isinstance(tensor, Tensor):
                self.add(tensor)
        return made

    def add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage not in self.known:
            self.known.add(storage)
            self._change(storage.nbytes())
            weakref.finalize(storage, self._change, -storage.nbytes())

    def _change(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


def build(cfg: Config) -> nn.Module:
    """The config's network, without storage; compilation is left out, which changes what is kept by little."""
    with WithoutStorage():
        model = MODELS.build(cfg.model)
    return make_fast(model, {**(cfg.get('fast') or {}), 'compile': False})


def count(model: nn.Module) -> Network:
    """The sizes of a network's parts."""
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    teacher = sum(p.numel() for part in model.modules() if isinstance(part, Teacher) for p in part.parameters())
    return Network(trained, teacher, sum(b.nbytes for b in model.buffers()))


def activations(model: nn.Module, views: int, batch: int, size: int, half: bool = False, weights=torch.float32) -> int:
    """Bytes beside weights and gradients at the fullest moment of a step of `batch` images; the step computes nothing."""
    model.to(weights)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device='cpu')
        return fullest_moment(model, [torch.empty(batch, 3, size, size, dtype=weights) for _ in range(views)], half)


def fullest_moment(model: nn.Module, images: list[Tensor], half: bool = False) -> int:
    """What a step on these images takes at most, beside the model's own tensors.

    It is more than what the forward pass keeps. A weight is used once for each view, and the gradient that the last view
    has left waits until that of the first is there to be added: in all, up to another set of gradients.
    """
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
    own = [*model.parameters(), *model.buffers()]
    held = [tensor.untyped_storage() for one in own for tensor in (one, one.grad) if tensor is not None]
    live = LiveBytes()
    live.known.update(held)
    with live, torch.autocast('cpu', torch.bfloat16, enabled=half):
        model(images, mode='loss')['loss'].backward()
    return live.peak + sum(image.nbytes for image in images)


def shares(network: Network, optimizer: str, gpus: int, bf16_weights: bool = False) -> dict[str, Memory]:
    """What each strategy keeps on one of so many GPUs, beside activations.

    With P parameters and T of the teacher's, w bytes each, and s bytes of optimizer state. ZeRO's optimizer steps float32
    masters of its own, also where the weights are float32. With weights in half the width the teacher has masters, too,
    and is itself laid out as the student is.
    """
    if optimizer not in STATE:
        raise UserError(
            f"how much '{optimizer}' keeps is not known here; optim_wrapper.optimizer may be {', '.join(STATE)}"
        )
    p, t, s, b = network.trained, network.teacher, STATE[optimizer], network.buffers
    w, masters = (2, bool(t) * 4 * p / gpus) if bf16_weights else (4, 0)
    teacher = w * (p if masters else t) + masters
    steps, bucket = (4 + s) * p / gpus, w * BUCKET
    return {
        'DDP': Memory(4 * p, 4 * p, s * p, 4 * t, b, 0),
        'ZeRO-1': Memory(w * p, w * p, steps, teacher, b, bucket),
        'ZeRO-2': Memory(w * p, w * p / gpus, steps, teacher, b, bucket),
        'ZeRO-3': Memory(w * p / gpus, w * p / gpus, steps, w * t / gpus + masters, b, bucket),
    }


def table(columns: dict[str, Memory]) -> str:
    """GiB of each part by strategy."""
    rows = [['GiB on each GPU', *columns]]
    for part in [field.name for field in fields(Memory)] + ['total']:
        rows.append([part, *(f'{getattr(memory, part) / GIB:.2f}' for memory in columns.values())])
    return '\n'.join(f'{name:<16}' + ''.join(f'{value:>9}' for value in values) for name, *values in rows)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='a config file, such as configs/large/mocov2plus_vit_l16_300e.py')
    parser.add_argument('--gpus', type=int, default=8)
    parser.add_argument('--per-gpu', type=int, help='images a GPU holds at once (default: the total batch, shared)')
    parser.add_argument('--size', type=int, default=224, help="the views' side in pixels")
    parser.add_argument('--bf16-weights', action='store_true', help='with strategy.bf16: weights in half the width')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, help='override config keys, as key=value')
    return parser.parse_args()


@one_sentence_errors
def main() -> None:
    args = parse()
    register()
    cfg = load_config(args.config, args.cfg_options)
    made = plan(cfg, args.gpus, args.per_gpu or cfg.total_batch_size // args.gpus)
    settle(cfg)
    model, views = build(cfg), len(cfg.train_dataloader.dataset.get('views') or [None, None])
    network, optimizer = count(model), cfg.optim_wrapper.optimizer.type
    half = cfg.optim_wrapper.get('dtype') == 'bfloat16'
    print(
        f'{network.trained / 1e6:.1f} million parameters, {network.teacher / 1e6:.1f} of the teacher; {optimizer}; '
        f'{views} views of {made.per_gpu} images of {args.size} pixels on each of {made.gpus} GPUs'
    )
    columns = shares(network, optimizer, made.gpus, args.bf16_weights)
    if args.bf16_weights:
        columns.pop('DDP')
    step = activations(
        model, views, made.per_gpu, args.size, half, torch.bfloat16 if args.bf16_weights else torch.float32
    )
    print(table({name: replace(memory, activations=step) for name, memory in columns.items()}))


if __name__ == '__main__':
    main()
