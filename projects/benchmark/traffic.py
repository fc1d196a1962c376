"""Count the bytes, operations and kernels that a step of MoCo v2+ requires on a GPU. The count needs no GPU.

python -m projects.benchmark.traffic [--batch 256] [--way fast]

The step of a ResNet-50 at 224 pixels runs on tensors without values. It begins with views in uint8 and ends with the update
of the queue. Each operation is assumed to read its inputs once and to write its outputs once, with two exceptions. Batch
norm reads its input twice, for the statistics and for the output, and in the backward pass it also reads the gradient
twice. The backward pass of a convolution reads its tensors for each of two products.
"""

if __name__ == '__main__':
    from mmairl.cli import prepare

    prepare()  # prepares the process before the imports below, which take seconds

import argparse
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from unittest.mock import patch

import torch
from mmengine.config import ConfigDict
from mmengine.optim import build_optim_wrapper
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from mmairl.cli.flags import positive
from mmairl.config import load_config
from mmairl.data.preprocess import ViewPreprocessor
from mmairl.engine.optim.autocast import FiniteFlag
from mmairl.engine.run import register
from mmairl.engine.speed import make_fast, set_fast_keys
from mmairl.models import fused_norm
from mmairl.models.heads.base import unit
from mmairl.models.norm import SyncBN
from mmairl.models.sync_norm import CPUKernels
from mmairl.report.table import print_table
from projects.benchmark.augment import MEAN, STD
from projects.benchmark.step import ON_GPU, SGD, Size, siamese

FREE = {
    'empty',
    'empty_strided',
    'empty_like',
    'new_empty',
    'new_empty_strided',
    'detach',
    'alias',
    'lift_fresh',
    'view',
    '_unsafe_view',
}
BFLOAT16 = dict(precision='bfloat16', channels_last=True, fused=True)
WAYS = {
    'float32': {},
    'fast': BFLOAT16,
    'fused norm': dict(BFLOAT16, fused_norm=True),
}
VIEWS = 'views on the device'


def size_of(*trees: object) -> int:
    leaves = tree_leaves(trees)
    return sum(x.numel() * x.element_size() for x in leaves if isinstance(x, Tensor))


class Traffic(TorchDispatchMode):
    """Count the bytes, floating-point operations and kernels of everything in the `with` block, by the name of the operation.

    Attributes:
        bytes: Bytes read and written.
        flops: Floating-point operations of convolutions and matrix products.
        launches: Number of kernels. A multi-tensor operation counts as one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()
        self.flops: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        aliases = [result.alias_info for result in func._schema.returns]
        is_view = aliases and all(alias is not None and not alias.is_write for alias in aliases)
        if func.namespace != 'aten' or name in FREE or is_view:
            return outputs
        moved = size_of(args, kwargs, outputs)
        if name == 'native_batch_norm':
            moved = 2 * size_of(args[0]) + size_of(kwargs.get('out', outputs[0]))
        elif name == 'native_batch_norm_backward':
            moved += size_of(args[:2])
        elif name == 'convolution_backward':
            moved = 2 * size_of(args[:3]) + size_of(outputs)
        elif name.startswith('_foreach') and name.endswith('_'):
            moved += size_of(args[0])
        elif name == '_fused_sgd_':
            moved = 2 * size_of(args[0], args[2]) + size_of(args[1])
        self.add(name, moved)
        if func.overloadpacket in flop_registry:
            count = flop_registry[func.overloadpacket]
            self.flops[name] += count(*args, **kwargs, out_val=outputs)
        return outputs

    def add(self, name: str, moved: int) -> None:
        self.launches[name] += moved > 0  # empty tensors need no kernel
        self.bytes[name] += moved


def count_step(fast: dict, size: Size) -> Traffic:
    """Count the second training step, because the first step also creates the momentum buffers."""
    model = siamese(size, 'mocov2plus')
    make_fast(model, fast)
    cfg = ConfigDict(
        fast=fast,
        model=dict(data_preprocessor=dict(type='ViewPreprocessor')),
        optim_wrapper=dict(type='AutocastOptimWrapper', optimizer=dict(SGD)),
    )
    set_fast_keys(cfg)
    if fast.get('channels_last'):
        model.data_preprocessor.layout = torch.channels_last
    shape = (size.batch, 3, size.image, size.image)
    with FakeTensorMode(allow_non_fake_inputs=True), patch.object(FiniteFlag, 'read', bool):
        model.to_empty(device='cpu')
        wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
        # As on a GPU, the wrapper must not wait for the check of the loss.
        wrapper._waits = False
        batch = dict(
            inputs=[torch.empty(shape, dtype=torch.uint8) for _ in range(2)], data_samples={}
        )
        for _ in range(2):
            traffic = Traffic()
            with traffic, fused_kernels(traffic) if fast.get('fused_norm') else nullcontext():
                model.train_step(batch, wrapper)
                model.teacher.follow(model, 0.99)
                model.queue.enqueue(unit(model.keys[0]))
    return traffic


def count(way: str, batch: int) -> Traffic:
    if way == VIEWS:
        return count_views(batch)
    return count_step(WAYS[way], replace(ON_GPU, batch=batch))


def count_views(batch: int, images: int = 32) -> Traffic:
    """Count the operations that make two views on the device, from uint8 images to normalized images.

    Only `images` images are processed, and the counted bytes are multiplied by batch / images.
    """
    torch.manual_seed(0)  # random draws decide which images are jittered and blurred
    pipeline = load_config('mmairl::_base_/views/on_device.py').mocov2_on_device
    preprocessor = ViewPreprocessor(MEAN, STD, [pipeline] * 2, channels_last=True)
    views = [torch.zeros(images, 3, 224, 224, dtype=torch.uint8) for _ in range(2)]
    with Traffic() as traffic:
        preprocessor(dict(inputs=views), training=True)
    traffic.bytes = Counter({name: n * batch // images for name, n in traffic.bytes.items()})
    return traffic


@contextmanager
def fused_kernels(traffic: Traffic) -> Iterator[None]:
    """Make SyncBN call the kernels of a GPU, which are replaced by functions that only count bytes."""

    def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        traffic.add('batch_norm_stats', size_of(x))
        mean = x.new_empty(x.shape[1], dtype=torch.float32)
        return mean, mean

    def batch_norm_gather_stats_with_counts(x: Tensor, means: Tensor, *_: object):
        traffic.add('batch_norm_gather_stats', size_of(means))
        return means[0], means[0]

    def batch_norm_backward_reduce(grad: Tensor, x: Tensor, mean: Tensor, *_: object):
        traffic.add('batch_norm_backward_reduce', size_of(grad, x))
        return mean, mean, mean, mean

    def affine(x: Tensor, *others: Tensor | bool | None) -> Tensor:
        y = torch.empty_like(x)
        traffic.add('affine_kernel', size_of(x, others, y))
        return y

    def forward(
        layer: SyncBN, x: Tensor, residual: Tensor | None = None, relu: bool = False
    ) -> Tensor:
        if not (layer.fused and fused_norm.FusedBatchNorm.supports(x, layer)):
            return eager(layer, x, residual, relu)
        relu = relu or layer.relu
        return fused_norm.FusedBatchNorm.apply(x, layer.weight, layer.bias, residual, layer, relu)

    eager = SyncBN.forward
    with (
        patch.object(CPUKernels, 'batch_norm_stats', batch_norm_stats),
        patch.object(
            CPUKernels, 'batch_norm_gather_stats_with_counts', batch_norm_gather_stats_with_counts
        ),
        patch.object(CPUKernels, 'batch_norm_backward_reduce', batch_norm_backward_reduce),
        patch.object(fused_norm, 'affine', affine),
        patch.object(SyncBN, 'forward', forward),
    ):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        '--batch', type=positive, default=256, help='use batches of this many images (default: 256)'
    )
    parser.add_argument(
        '--way',
        choices=[*WAYS, VIEWS],
        help='count a step with these settings, or only the views (default: all)',
    )
    args = parser.parse_args()
    register()
    for way in [args.way] if args.way else [*WAYS, VIEWS]:
        traffic = count(way, args.batch)
        total = traffic.bytes.total()
        rows = [
            (name, [str(traffic.launches[name]), f'{moved / 1e9:.1f}', f'{moved / total:.0%}'])
            for name, moved in traffic.bytes.most_common(16)
        ]
        title = (
            f'{way}, batch {args.batch}: {total / 1e9:.1f} GB, {traffic.flops.total() / 1e12:.2f} TFLOP, '
            f'{traffic.launches.total()} kernels'
        )
        print_table(['kernels', 'GB', 'share'], rows, title, head='operation')


if __name__ == '__main__':
    main()
