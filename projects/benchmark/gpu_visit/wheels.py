"""Download the packages that a machine without a package index lacks."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REQUIREMENTS = Path(__file__).parents[3] / 'requirements'
EXTRAS = ['pytest', 'pytest-timeout', 'simplejpeg', 'lightly==1.6.0', 'lightly-utils==0.0.2']
# These packages are part of every installation of torch for GPUs, so they are not downloaded.
WITH_TORCH = re.compile('torch|torchvision|triton|nvidia-.*|cuda-.*')
PYTHON = '3.12'
PLATFORMS = ['manylinux_2_28_x86_64', 'manylinux_2_17_x86_64', 'manylinux2014_x86_64']


def family(name: str) -> str:
    """Return the canonical name of a package. OpenCV's four packages contain the same module and get one name."""
    name = canonicalize_name(name)
    return 'opencv' if name.startswith('opencv-') else name


def missing_packages(frozen: str = '', python: str = PYTHON) -> list[str]:
    """Return `name==version` of all packages that mmairl, OpenMMLab and the tests need, in the versions installed here.

    Args:
        frozen: The output of `pip freeze` on the target machine. These packages are left out.
        python: The Python version of the target machine. Requirements for other versions are left out.
    """
    lines = frozen.splitlines()
    installed = {family(re.split('[=@ ]', line)[0]) for line in lines if line.strip()}
    environment = {
        **default_environment(),
        'extra': '',
        'python_version': python,
        'python_full_version': f'{python}.0',
    }
    requirements = list(map(Requirement, EXTRAS))
    for name in ('runtime', 'openmmlab'):
        for line in (REQUIREMENTS / f'{name}.txt').read_text().splitlines():
            if line.strip() and not line.startswith('#'):
                requirements.append(Requirement(line))
    versions: dict[str, str] = {}
    while requirements:
        requirement = requirements.pop()
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate(environment)
        if (
            name in versions
            or family(name) in installed
            or WITH_TORCH.fullmatch(name)
            or not applies
        ):
            continue
        try:
            package = distribution(name)
        except PackageNotFoundError:
            # A package that is not installed here is downloaded if its version is pinned. Otherwise, it is optional.
            for pinned in requirement.specifier:
                if pinned.operator == '==':
                    versions[name] = pinned.version
            continue
        versions[name] = package.version
        requirements += map(Requirement, package.requires or ())
    return [f'{name}=={version}' for name, version in sorted(versions.items())]


def download(folder: Path, installed: Path | None) -> int:
    """Download the wheels, print their size, and return pip's exit code."""
    packages = missing_packages(installed.read_text() if installed else '')
    target = ['--python-version', PYTHON, '--implementation', 'cp']
    for platform in PLATFORMS:
        target += ['--platform', platform]
    pip = [sys.executable, '-m', 'pip', 'download', '-q', '--no-deps', '--only-binary=:all:']
    code = subprocess.run([*pip, *target, '-d', folder, *packages]).returncode
    size = sum(path.stat().st_size for path in folder.glob('*.whl'))
    print(f'{len(packages)} packages, {size / 2**20:.1f} MiB in {folder}')
    return code
