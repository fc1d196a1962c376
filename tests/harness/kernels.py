"""Count what a device is asked to do, without one: the kernels and the bytes of operations on fake tensors or on meta."""

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


class Kernels(TorchDispatchMode):
    """Counts the kernels that operations launch, on one device or anywhere, and the bytes that these read and write.

    A multi-tensor kernel counts as one.
    """

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        self.device = device
        self.launches, self.bytes = Counter(), Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        name, results = func.overloadpacket.__name__, [result.alias_info for result in func._schema.returns]
        is_view = results and all(result is not None and not result.is_write for result in results)
        there = [one.device.type for one in tree_leaves((args, kwargs, made)) if isinstance(one, Tensor)]
        asked = self.device is None or self.device in there
        if asked and func.namespace == 'aten' and name not in NO_KERNEL and not is_view:
            twice = args[:3] if name == 'convolution_backward' else ()
            self.count(name, args, kwargs, twice, made)
        return made

    def run(self, work: Callable[[], None]) -> None:
        with self:
            work()

    def count(self, name: str, *tensors: object) -> None:
        self.launches[name] += 1
        self.bytes[name] += sum(
            one.numel() * one.element_size() for one in tree_leaves(tensors) if isinstance(one, Tensor)
        )
