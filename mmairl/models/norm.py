"""Batch norm over processes, over parts of a batch or for each view, ShuffleBN, and measurement of running statistics."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.dist import broadcast, get_rank, get_world_size
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.processes import gather, own_group
from mmairl.models.sync_norm import LocalBatchNorm, SharedBatchNorm
from mmairl.registry import MODELS


def norms_of(network: nn.Module) -> list[nn.Module]:
    """Return the batch norms of a network."""
    kind = nn.modules.batchnorm._BatchNorm
    return [layer for layer in network.modules() if isinstance(layer, kind)]


@torch.no_grad()
def measure_statistics(
    network: nn.Module, batches: Iterable, forward: Callable[[Any], object]
) -> None:
    """Replace the running statistics of each batch norm in training mode by their mean over the batches.

    Args:
        network: The network. Its weights do not change.
        batches: The batches. Batch k has the momentum 1 / k, so the old statistics have no influence.
        forward: Function that passes a batch through the network.
    """
    norms = [norm for norm in norms_of(network) if norm.training]
    momenta = [norm.momentum for norm in norms]
    for count, batch in enumerate(batches, start=1):
        for norm in norms:
            norm.momentum = 1 / count
        forward(batch)
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum


def shuffle(images: Tensor) -> tuple[Tensor, Tensor]:
    """Permute the batch of all processes. Return this process's part of the result, and the permutation."""
    everyone = gather(images)
    order = torch.randperm(len(everyone), device=images.device)
    broadcast(order)
    return everyone[order.chunk(get_world_size())[get_rank()]], order


def unshuffle(keys: Tensor, order: Tensor) -> Tensor:
    """Return the keys of this process's images from the permuted keys of all processes."""
    own = order.argsort().chunk(get_world_size())[get_rank()]
    return gather(keys)[own]


@MODELS.register_module('SplitBN')
class SplitBN(nn.modules.batchnorm._BatchNorm):
    """Batch norm over parts of the batch, as if each of `replicas` GPUs had one part.

    The running statistics are the mean over the parts. Each of P processes splits its batch into `replicas` / P parts, or
    has one part if there are more processes than replicas.

    Args:
        num_features: Number of channels.
        replicas: Number of parts of the batch of all processes together.
        **kwargs: The arguments of `torch.nn.BatchNorm2d`.

    Raises:
        UserError: If the batch cannot be split into equal parts of at least two images.
    """

    _check_input_dim = nn.SyncBatchNorm._check_input_dim

    def __init__(self, num_features: int, replicas: int = 8, **kwargs: Any) -> None:
        super().__init__(num_features, **kwargs)
        self.replicas = replicas

    def forward(self, x: Tensor) -> Tensor:
        parts = max(1, self.replicas // get_world_size())
        if not self.training or parts == 1:
            return super().forward(x)
        if len(x) % parts or len(x) == parts:
            raise UserError(
                f"SplitBN: a batch cannot be split into {parts} equal parts of at least two images ('{len(x)}'); "
                'change total_batch_size or the replicas of the norm_cfg',
                code='unequal-replicas',
            )
        self.num_batches_tracked.add_(1)
        means = self.running_mean.repeat(parts, 1)
        variances = self.running_var.repeat(parts, 1)
        outputs = [
            nn.functional.batch_norm(
                part, mean, var, self.weight, self.bias, True, self.momentum, self.eps
            )
            for part, mean, var in zip(x.chunk(parts), means, variances)
        ]
        self.running_mean.copy_(means.mean(dim=0))
        self.running_var.copy_(variances.mean(dim=0))
        return torch.cat(outputs)


@MODELS.register_module('SyncBN')
class SyncBN(nn.modules.batchnorm._BatchNorm):
    """Batch norm over the batch of all processes, on CPUs and GPUs. Not tested on a GPU yet.

    `torch.nn.SyncBatchNorm` rejects CPU tensors, and on GPUs it makes the host wait three times per layer for the number of
    images. This class does not derive from it, because DDP rejects subclasses of it on CPUs. With one process, or in
    evaluation mode, this class is plain batch norm. If a batch contains several views (`each_view`), each view has its own
    statistics.

    Args:
        num_features: Number of channels.
        group: Number of neighboring processes that share statistics, such as the processes of one machine. Default: all.
        **kwargs: The arguments of `torch.nn.BatchNorm2d`.
    """

    _check_input_dim = nn.SyncBatchNorm._check_input_dim

    def __init__(self, num_features: int, group: int | None = None, **kwargs: Any) -> None:
        super().__init__(num_features, **kwargs)
        self.group = group
        self.views = 1  # in the batch of the current pass, set by `each_view`
        self.fused = False  # set by `fast.fused_norm`
        self.relu = False  # set by `fast.fused_norm`

    def forward(self, x: Tensor, residual: Tensor | None = None, relu: bool = False) -> Tensor:
        """Normalize, add the residual if there is one, and apply ReLU if this call or the layer requests it."""
        relu = relu or self.relu
        if self.training and self.fused and x.is_cuda:
            from mmairl.models.fused_norm import FusedBatchNorm  # requires Triton

            if FusedBatchNorm.supports(x, self):
                self._count_batches()
                return FusedBatchNorm.apply(x, self.weight, self.bias, residual, self, relu)
        y = self._normalize(x)
        if residual is not None:
            y += residual
        return y.relu_() if relu else y

    def _normalize(self, x: Tensor) -> Tensor:
        alone = get_world_size() == 1
        if not self.training or (alone and self.views == 1):
            return super().forward(x)
        # For contiguous images, cuDNN's kernels are the fastest, and only torch's own batch norm calls them.
        cudnn = x.is_cuda and x.ndim == 4 and not x.is_contiguous(memory_format=torch.channels_last)
        other_device = x.device.type not in ('cpu', 'cuda', 'meta')
        if alone and (cudnn or other_device or torch.compiler.is_compiling()):
            return torch.cat([super(SyncBN, self).forward(view) for view in x.chunk(self.views)])
        return self._normalize_views(x)

    @torch.compiler.disable  # because compiled collectives gave wrong gradients
    def _normalize_views(self, x: Tensor) -> Tensor:
        self._count_batches()
        alone = get_world_size(own_group(self.group)) == 1
        function = LocalBatchNorm if alone else SharedBatchNorm
        return function.apply(x, self.weight, self.bias, self)

    def _count_batches(self) -> None:
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(self.views)


@contextmanager
def views_in_batch(modules: Iterable[nn.Module], views: int) -> Iterator[None]:
    """Set the number of views in the batches within the block. A batch contains the views one after another."""
    modules = list(modules)
    for module in modules:
        module.views = views
    try:
        yield
    finally:
        for module in modules:
            module.views = 1


def each_view(
    network: nn.Module, run: Callable[[nn.Module, Tensor], Tensor], views: Sequence[Tensor]
) -> list[Tensor]:
    """Return `run(network, view)` for each view, with separate batch-norm statistics for each view.

    Views of the same shape share a forward pass, so crops of two sizes take two passes. In a pass, the rows of the first
    view precede those of the second. If any batch norm of the network is not a SyncBN, every view has its own pass.

    Args:
        network: The network.
        run: Function that returns one row per image.
        views: A batch of images for each view.
    """
    norms = norms_of(network)
    joins = all(isinstance(norm, SyncBN) for norm in norms)
    passes: dict[object, list[int]] = {}
    for number, view in enumerate(views):
        passes.setdefault(view.shape if joins else number, []).append(number)
    outputs: dict[int, Tensor] = {}
    for numbers in passes.values():
        together = [views[number] for number in numbers]
        batch = torch.cat(together) if len(together) > 1 else together[0]
        with views_in_batch([network, *norms], len(numbers)):
            outputs.update(zip(numbers, run(network, batch).chunk(len(numbers))))
    return [outputs[number] for number in range(len(views))]


def first_view(network: nn.Module, rows: Tensor) -> Tensor:
    """Return the rows of the first view in the output of a part of `network`, during `each_view`."""
    return rows.chunk(getattr(network, 'views', 1))[0]
