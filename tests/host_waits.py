"""Which operations of a training step would make the host wait for a GPU, found on a CPU."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
# What they return, or its shape, is known to the host only once the device has got there.
READS = {
    aten._local_scalar_dense,
    aten.is_nonzero,
    aten.equal,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
}
INDEXED = {aten.index, aten.index_put, aten.index_put_}  # by a mask of truth values, that is by its nonzero()
# Read memory without an operation that a dispatch mode could see.
METHODS = ('tolist', 'numpy', '__array__', 'cpu')


class HostWaits(TorchDispatchMode):
    """Collects the waits for tensors of the device: the network's, and whatever is computed from them.

    On a CPU all memory looks alike, so each storage is remembered that descends from `roots`. What the loader brings and
    what a hook makes of its own is the host's, on a GPU too, until an operation joins it with the device's. A copy into a
    host's tensor stays the host's; it is no wait if it is said not to block, and reading it after an event is none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on_device: dict[int, object] = {}
        self.found: list[str] = []

    def add(self, tensors: Iterator[Tensor] | list[Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self.on_device[storage._cdata] = storage  # held, lest another takes its place

    def holds(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self.on_device

    def note(self, what: str) -> None:
        ours = [
            line for line in traceback.extract_stack() if '/mmairl/' in line.filename or '/mmengine/' in line.filename
        ]
        self.found.append(f'{what} at ' + ' < '.join(f'{f.filename}:{f.lineno}' for f in reversed(ours[-3:])))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        touched = [tensor for tensor in tensors if self.holds(tensor)]
        kind = func.overloadpacket
        if touched and kind in READS:
            self.note(str(kind))
        if kind in INDEXED and touched and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
            self.note(f'{kind} by a mask')
        result = func(*args, **kwargs)
        if kind is aten.copy_ and not self.holds(args[0]):
            if touched and not (kwargs.get('non_blocking') or (len(args) > 2 and args[2])):
                self.note('a blocking copy to the host')
        elif touched:
            self.add(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        return result


@contextmanager
def watching(monkeypatch) -> Iterator[HostWaits]:
    """The mode, with the methods watched that it cannot see."""
    waits = HostWaits()

    def watched(name: str, original: Callable) -> Callable:
        def method(tensor: Tensor, *args, **kwargs):
            if waits.holds(tensor):
                waits.note(f'Tensor.{name}')
            return original(tensor, *args, **kwargs)

        return method

    for name in METHODS:
        monkeypatch.setattr(Tensor, name, watched(name, getattr(Tensor, name)))
    with waits:
        yield waits
