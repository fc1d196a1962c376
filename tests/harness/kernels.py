"""Count the kernels that operations launch and the bytes that they move, without a device, on fake or meta tensors."""

from collections import Counter
from collections.abc import Callable

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NO_KERNEL = {
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


def tensors_in(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class Kernels(TorchDispatchMode):
    """Count launched kernels, and the bytes that they read and write.

    A multi-tensor operation counts as one kernel.

    Args:
        device: Count only operations with a tensor on this device. Default: any device.
    """

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        self.device = device
        self.launches: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        outputs = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        aliases = [result.alias_info for result in func._schema.returns]
        is_view = aliases and all(alias is not None and not alias.is_write for alias in aliases)
        devices = {tensor.device.type for tensor in tensors_in((args, kwargs, outputs))}
        counted = self.device is None or self.device in devices
        if counted and func.namespace == 'aten' and name not in NO_KERNEL and not is_view:
            read_twice = args[:3] if name == 'convolution_backward' else ()
            self.count(name, args, kwargs, read_twice, outputs)
        return outputs

    def run(self, work: Callable[[], None]) -> None:
        with self:
            work()

    def count(self, name: str, *tensors: object) -> None:
        self.launches[name] += 1
        self.bytes[name] += sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(tensors))
