"""Build the libraries of the software GPU with gcc, using headers from torch's and triton's wheels."""

import fcntl
import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import torch

from mmairl import hardware

HERE = Path(__file__).parent
SITE = Path(torch.__file__).parents[1]
HEADERS = [SITE / path for path in ('nvidia/cu13/include', 'triton/backends/nvidia/include', 'nvidia/nccl/include')]
# Each entry has the soname to which torch links, the source of our library (or None), a pattern of
# the functions that the library must have, and a pattern of those that may do nothing.
LIBRARIES = (
    ('libcudart.so.13', 'cudart.c', '(?:__)?cuda', ''),
    ('libcuda.so.1', None, 'cu[A-Z]', ''),
    ('libnccl.so.2', 'nccl.c', 'nccl', 'nccl(Comm|Group)'),
)
IDLE = 'int {name}() {{ return 0; }}'
MISSING = 'int {name}() {{ fprintf(stderr, "the software NCCL lacks {name}\\n"); return 5; }}'


def missing() -> str | None:
    """Return the reason why the libraries cannot be built, or None."""
    if not (shutil.which('gcc') and shutil.which('nm')):
        return 'the software GPU requires gcc and nm'
    if not (torch.version.cuda or '').startswith('13.') or not all(path.is_dir() for path in HEADERS):
        return "the software GPU requires torch's build for CUDA 13, with its headers"
    return None


def software_gpu() -> Path:
    """Return the folder of the libraries. They are built once for these sources and this version of torch."""
    sources = b''.join((HERE / name).read_bytes() for name in ('build_runtime.py', 'cudart.c', 'nccl.c'))
    key = hashlib.sha256(sources + torch.__version__.encode()).hexdigest()[:16]
    folder = hardware.cache() / 'softgpu' / key
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / 'lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / 'built').exists():
            build(folder)
            (folder / 'built').touch()
    return folder


def build(folder: Path) -> None:
    """Write the libraries to a folder."""
    undefined = _names('--undefined-only', *(SITE / 'torch/lib').glob('lib*.so'))
    for soname, source, pattern, idle in LIBRARIES:
        library, sources = folder / soname, [folder / f'{soname}.c']
        implemented = (
            set() if source is None else set(re.findall(r'^[\w *]*?(\w+)\(', (HERE / source).read_text(), re.M))
        )
        names = sorted(name for name in undefined if re.match(pattern, name) and name not in implemented)
        stubs = [(IDLE if re.match(idle, name) else MISSING).format(name=name) for name in names]
        sources[0].write_text('\n'.join(['#include <stdio.h>', *stubs]))
        if source is not None:
            sources.append(HERE / source)
        versions = folder / f'{soname}.map'
        versions.write_text(f'{soname} {{ global: *; }};' if 'cudart' in soname else '{ global: *; };')
        # The header nccl.h would include CUDA's headers of FP16, BF16 and FP8, which are C++. These flags prevent this.
        half = [f'-D__CUDA_{kind}_H__' for kind in ('FP16', 'BF16', 'FP8')]
        flags = ['-O1', '-fPIC', '-shared', '-w', f'-Wl,-soname,{soname}', f'-Wl,--version-script={versions}', *half]
        command = ['gcc', *flags, *(f'-I{path}' for path in HEADERS), '-o', library, *sources, '-lpthread', '-lrt']
        subprocess.run(command, check=True)


def _names(which: str, *libraries: Path) -> set[str]:
    listed = subprocess.run(['nm', '-D', which, *libraries], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r' U (\w+)', listed))
