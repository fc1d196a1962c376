"""Packaging of mmairl; pins for a known-good set live in requirements/constraints.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent


def requirements(name: str) -> list[str]:
    lines = (HERE / 'requirements' / f'{name}.txt').read_text().splitlines()
    return [line for line in lines if line and not line.startswith('#')]


setup(
    name='mmairl',
    version=re.search(r"__version__ = '(.+)'", (HERE / 'mmairl' / '__init__.py').read_text())[1],
    description='The fair benchmark of augmentation-invariant representation learning, on OpenMMLab',
    long_description=(HERE / 'README.md').read_text(),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.10',
    packages=find_packages(include=['mmairl', 'mmairl.*']),
    package_data={'mmairl.study': ['*.yaml']},
    # The OpenMMLab platform comes in two stacks with the same import names, so neither is forced on the user.
    install_requires=requirements('runtime'),
    extras_require={
        'openmmlab': requirements('openmmlab'),
        'transfer': requirements('transfer'),
        'deepspeed': requirements('deepspeed'),
        'tests': requirements('tests'),
    },
)
