"""The packages that a machine without a package index lacks, from what is installed here."""

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REQUIREMENTS = Path(__file__).parents[2] / 'requirements'
WITH_TORCH = re.compile(
    'torch|torchvision|triton|nvidia-.*|cuda-.*'
)  # what a machine with a GPU has


def wheels(frozen: str = '') -> list[str]:
    """`name==version` of all that the runtime, the platform and the tests need here, less torch's own and what is there."""
    there = {
        canonicalize_name(re.split('[=@ ]', line)[0])
        for line in frozen.splitlines()
        if line.strip()
    }
    lines = [
        (REQUIREMENTS / f'{name}.txt').read_text().splitlines() for name in ('runtime', 'openmmlab')
    ]
    wanted = [
        Requirement(line)
        for line in sum(lines, ['pytest', 'simplejpeg'])
        if line.strip() and line[0] != '#'
    ]
    found: dict[str, str] = {}
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate(dict(extra=''))
        if name in found or name in there or WITH_TORCH.fullmatch(name) or not applies:
            continue
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # an option that is not installed here
        found[name] = package.version
        wanted += map(Requirement, package.requires or ())
    return [f'{name}=={version}' for name, version in sorted(found.items())]
