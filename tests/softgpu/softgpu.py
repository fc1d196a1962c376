"""A GPU in software: torch's own CUDA code runs, but no kernel does; the CPU's kernels compute the numbers.

Import this module before torch. The environment variable SOFTGPU names the folder that build_runtime.py has filled.
Devices, streams, events, the caching allocator, pinned memory, `torch.cuda.set_sync_debug_mode` and NCCL's process
group are torch's own code. Within `Numbers`, each operation on CUDA tensors runs twice. The first run is unchanged,
with its checks and allocations, but without kernels. The second run is on CPU tensors over the same memory and computes
the numbers. Tests can thus find tensors on the wrong device and operations that wait for the device, but cannot measure
speed.
"""

import ctypes
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

assert 'torch' not in sys.modules, 'import softgpu before torch'
RUNTIME, *_ = (
    ctypes.CDLL(str(Path(os.environ['SOFTGPU']) / soname), ctypes.RTLD_GLOBAL)
    for soname in ('libcudart.so.13', 'libcuda.so.1', 'libnccl.so.2')
)
MEMORY = ('pageable', 'pinned', 'device')

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten  # noqa: E402

aten = torch.ops.aten
# These operations only allocate memory or read values from it, so they run once.
PLAIN = {
    *(aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty, aten.new_empty_strided, aten.resize_, aten.set_),
    *(aten.detach, aten.alias, aten.record_stream, aten.is_pinned, aten.pin_memory, aten._pin_memory, aten.lift_fresh),
    *(aten._reshape_alias, aten._local_scalar_dense),
}
# These operations use cuBLAS, cuDNN, cuSOLVER or NVRTC, which the software GPU lacks, so only the CPU's operation runs.
LIBRARIES = {
    *('convolution', 'convolution_backward', 'mm', 'addmm', 'addmm_', '_addmm_activation', 'bmm', 'baddbmm', 'mv'),
    *(
        'dot',
        '_linalg_solve_ex',
        '_linalg_svd',
        '_linalg_eigh',
        'linalg_eigh',
        'linalg_qr',
        'linalg_inv_ex',
        'special_entr',
    ),
}
SIZED = {'equal', 'nonzero', 'masked_select', '_unique2', 'unique_dim', 'unique_consecutive', 'bincount'}
MASKED = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)
# These functions stand in for operations that the CPU lacks. The keys are the names of the operations.
ON_CUDA_ONLY: dict[str, Callable] = {}
launches = 0  # The number of operations on the device so far


class Numbers(TorchDispatchMode):
    """Compute what the kernels would have computed.

    The CPU's generator draws random numbers, so a run equals a run on the CPU.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(one.__name__ == 'DTensor' for one in types):
            return NotImplemented  # DTensor then calls the operation on its local tensors
        if any(one.__name__ == 'FakeTensor' for one in types):
            return func(*args, **kwargs)  # Fake tensors have no values to compute
        kind, name = func.overloadpacket, func.overloadpacket.__name__
        leaves = tree_leaves((args, kwargs))
        if not any(map(on_cuda, leaves)) or func.namespace not in ('aten', 'fsdp') or kind in PLAIN or is_view(func):
            return func(*args, **kwargs)
        global launches
        launches += 1
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        if has(func.name(), 'CompositeImplicitAutograd') and not has(func.name(), 'CUDA'):
            # In inference mode, composite operations arrive here undivided.
            with self:
                return func.decompose(*args, **kwargs)
        if kind is aten.copy_:
            return copy(*args, **kwargs)
        if kind is aten._to_copy:
            return convert(func, args, kwargs)
        if name in ON_CUDA_ONLY:
            return ON_CUDA_ONLY[name](func, args, kwargs)
        masked = kind in MASKED and any(isinstance(i, Tensor) and i.dtype == torch.bool for i in args[1])
        if name in SIZED or masked:
            wait()
        if name in SIZED or masked or name in LIBRARIES:
            return on_host(func, args, kwargs)
        result = func(*args, **kwargs)
        return fill(result, func(*tree_map(host, args), **tree_map(host, kwargs)))


def work() -> dict[str, int]:
    """Return the number of operations so far, and the number of copies by kinds of memory."""
    return dict(launches=launches) | {
        f'{source} to {to}': RUNTIME.softgpu_copies(number, other)
        for number, source in enumerate(MEMORY)
        for other, to in enumerate(MEMORY)
    }


def on_cuda(leaf: Any) -> bool:
    device = leaf.device if isinstance(leaf, Tensor) else leaf
    return isinstance(device, torch.device) and device.type == 'cuda'


def is_view(func) -> bool:
    infos = [one.alias_info for one in func._schema.returns]
    return bool(infos) and all(info is not None and not info.is_write for info in infos)


def wait() -> None:
    """Warn or raise as torch does if the host would have to wait for a number that decides a shape."""
    mode = torch.cuda.get_sync_debug_mode()
    if mode == 2:
        raise RuntimeError('called a synchronizing CUDA operation')
    if mode == 1:
        warnings.warn('called a synchronizing CUDA operation', stacklevel=2)


def alias(tensor: Tensor) -> Tensor:
    """Return a CPU tensor over the memory of a CUDA tensor."""
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:  # `fully_shard` may have freed the memory of the tensor
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    memory = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), torch.device('cpu'), storage.nbytes())
    return torch.empty(0, dtype=tensor.dtype).set_(memory, tensor.storage_offset(), tensor.size(), tensor.stride())


def host(leaf: Any) -> Any:
    """Return an argument for the CPU's operation. The device's generator is replaced with the CPU's."""
    if isinstance(leaf, Tensor):
        return alias(leaf) if leaf.device.type == 'cuda' else leaf
    if isinstance(leaf, torch.device):
        return torch.device('cpu')
    return None if isinstance(leaf, torch.Generator) and leaf.device.type == 'cuda' else leaf


def device(number: Tensor) -> Tensor:
    result = torch.empty_strided(number.size(), number.stride(), dtype=number.dtype, device='cuda')
    alias(result).copy_(number)
    return result


def fill(result: Any, right: Any) -> Any:
    """Return the CUDA results after the CPU's numbers were written to them."""
    results, structure = tree_flatten(result)
    filled = []
    for one, number in zip(results, tree_leaves(right)):
        # The device has allocated this gradient, but the CPU has not computed it because nobody
        # needs it.
        if number is None:
            filled.append(None)
            continue
        if isinstance(one, Tensor) and one.shape == number.shape and one.dtype == number.dtype:
            memory = alias(one) if one.device.type == 'cuda' else one
            if memory.data_ptr() != number.data_ptr():
                memory.copy_(number)
        elif isinstance(one, Tensor):
            one = device(number)
        else:
            one = number
        filled.append(one)
    return tree_unflatten(filled, structure)


def on_host(func, args, kwargs):
    """Run only the CPU's operation, and keep the memory layout of its results."""
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, Tensor) and leaf.device.type == 'cpu' and leaf.ndim:
            raise RuntimeError(f'Expected all tensors to be on the same device, but got one on the CPU in {func}')
    tensors = {leaf.data_ptr(): leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}

    def back(number: Any) -> Any:
        if not isinstance(number, Tensor):
            return number
        same = tensors.get(number.data_ptr())
        return same if same is not None and same.shape == number.shape else device(number)

    return tree_map(back, func(*tree_map(host, args), **tree_map(host, kwargs)))


def copy(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    aten.copy_.default(to, source, non_blocking)
    host(to).copy_(host(source))
    return to


def convert(func, args, kwargs):
    """Copy a tensor to another device or dtype."""
    result = func(*args, **kwargs)
    host(result).copy_(host(args[0]))
    return result


def on_cuda_only(function: Callable) -> Callable:
    ON_CUDA_ONLY[function.__name__] = function
    return function


def wider(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


@on_cuda_only
def cudnn_batch_norm(func, args, kwargs):
    x, *others = map(host, args)
    y, mean, invstd = aten.native_batch_norm.default(wider(x), *others)
    return device(y.to(x.dtype)), device(mean), device(invstd), device(torch.empty(0, dtype=torch.uint8))


@on_cuda_only
def cudnn_batch_norm_backward(func, args, kwargs):
    x, grad, weight, mean, var, saved_mean, saved_invstd, eps, _ = map(host, args)
    arguments = (wider(grad), wider(x), weight, mean, var, saved_mean, saved_invstd, True, eps, [True] * 3)
    of_x, *of_parameters = aten.native_batch_norm_backward.default(*arguments)
    return device(of_x.to(x.dtype)), *map(device, of_parameters)


def as_ours(func, args, kwargs):
    """Run a kernel of synchronized batch norm. Our kernel for CPUs computes the numbers."""
    from mmairl.models.sync_norm import CPUKernels

    result, on_cpu = func(*args, **kwargs), {key: host(value) for key, value in kwargs.items()}
    right = getattr(CPUKernels, func.overloadpacket.__name__)(*map(host, args), **on_cpu)
    return result if right is None else fill(result, right)


KERNELS = ('stats', 'gather_stats_with_counts', 'elemt', 'backward_reduce', 'backward_elemt')
ON_CUDA_ONLY.update({f'batch_norm_{kernel}': as_ours for kernel in KERNELS})
# This function replaces NVML, which would count GPUs without initializing CUDA, so that a forked
# process can still initialize CUDA.
torch.cuda._device_count_nvml = lambda: int(os.environ.get('SOFTGPU_DEVICES', 1))
# The CPU has no operations that match these kinds of attention.
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)
torch.backends.cuda.enable_cudnn_sdp(False)
