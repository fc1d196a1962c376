"""Batch norm over all processes, over parts of a batch, and separately for each view.

A view is one augmented copy of each image in the batch. This module also has MoCo's ShuffleBN and a function that measures
running statistics.
"""

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
    """Set the running statistics to the mean of the batch statistics.

    Only batch norms that are in training mode are changed.

    Args:
        network: The network. Its weights do not change.
        batches: The batches. Batch k is averaged with a momentum of 1 / k, so the old statistics have no influence.
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
    """Permute the images of all processes. Return this process's part of the permuted images, and the permutation."""
    everyone = gather(images)
    order = torch.randperm(len(everyone), device=images.device)
    broadcast(order)
    return everyone[order.chunk(get_world_size())[get_rank()]], order


def unshuffle(keys: Tensor, order: Tensor) -> Tensor:
    """Undo `shuffle`: return the keys of this process's own images.

    Args:
        keys: The keys of the images that `shuffle` gave to this process.
        order: The permutation that `shuffle` returned.
    """
    own = order.argsort().chunk(get_world_size())[get_rank()]
    return gather(keys)[own]


@MODELS.register_module('SplitBN')
class SplitBN(nn.modules.batchnorm._BatchNorm):
    """Batch norm that normalizes each part of a batch separately, as if each part were on its own GPU.

    Each of P processes splits its batch into `replicas` / P parts, rounded down. If this number is below 2, the batch is not
    split. The running statistics are averaged over the parts of the process.

    Args:
        num_features: Number of channels.
        replicas: Number of GPUs to imitate. If P divides this number, the batch of all processes together is split into this
            many parts.
        **kwargs: The arguments of `torch.nn.BatchNorm2d`.

    Raises:
        UserError: If a process cannot split its batch into equal parts of at least two images.
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
                f"SplitBN: a batch of '{len(x)}' images cannot be split into {parts} equal parts of at least two images; "
                'change total_batch_size or norm_cfg.replicas',
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
    """Batch norm over the batch of all processes, or of a group of processes, on CPUs and GPUs. Not tested on a GPU yet.

    `torch.nn.SyncBatchNorm` rejects CPU tensors. On GPUs, it makes the host wait for the device three times per layer, when
    it drops the statistics of processes without images. `SyncBN` is not a subclass of `torch.nn.SyncBatchNorm`, because DDP
    rejects such subclasses on CPUs. With one process, or in evaluation mode, `SyncBN` is plain batch norm, with one exception:
    in training, each view of a batch with several views (see `each_view`) is normalized by its own statistics.

    Args:
        num_features: Number of channels.
        group: Number of neighboring processes that share statistics, such as the number of processes on one machine.
            Default: all processes share statistics.
        **kwargs: The arguments of `torch.nn.BatchNorm2d`.
    """

    _check_input_dim = nn.SyncBatchNorm._check_input_dim

    def __init__(self, num_features: int, group: int | None = None, **kwargs: Any) -> None:
        super().__init__(num_features, **kwargs)
        self.group = group
        # The number of views in a batch. `each_view` changes it for the duration of a forward pass.
        self.views = 1
        # Whether to use the kernel in fused_norm.py, and whether ReLU follows. The config key `fast.fused_norm` sets both.
        self.fused = False
        self.relu = False

    def forward(self, x: Tensor, residual: Tensor | None = None, relu: bool = False) -> Tensor:
        """Normalize `x`, add the residual if there is one, and apply ReLU if the argument or the attribute `relu` is true."""
        relu = relu or self.relu
        if self.training and self.fused and x.is_cuda:
            # The module requires Triton, so it is imported only here.
            from mmairl.models.fused_norm import FusedBatchNorm

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
        # For images in contiguous (NCHW) memory, torch's batch norm is used, because only it calls cuDNN's fast kernels.
        cudnn = x.is_cuda and x.ndim == 4 and not x.is_contiguous(memory_format=torch.channels_last)
        other_device = x.device.type not in ('cpu', 'cuda', 'meta')
        if alone and (cudnn or other_device or torch.compiler.is_compiling()):
            return torch.cat([super(SyncBN, self).forward(view) for view in x.chunk(self.views)])
        return self._normalize_views(x)

    # This function is not compiled, because compiled collectives gave wrong gradients.
    @torch.compiler.disable
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
    """Set the attribute `views` of the modules while the `with` block runs, and reset it to 1 afterward.

    Args:
        modules: Modules whose input will be a batch of several views, one view after another.
        views: Number of views in the batch.
    """
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

    Views of the same shape are concatenated and share a forward pass, so crops of two sizes take two passes. If any batch
    norm of the network is not a SyncBN, every view has its own pass.

    Args:
        network: The network.
        run: Function that passes a batch through the network and returns one row per image.
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
    """Return only the rows that belong to the first view. Forward hooks call this function while `each_view` runs.

    Args:
        network: The network that `each_view` runs.
        rows: Output of a part of the network for a batch that may contain several views.
    """
    return rows.chunk(getattr(network, 'views', 1))[0]
