"""Packaging of mmairl; pins for a known-good set live in requirements/constraints.txt."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
# What OpenMMLab's package manager and `mmairl::` names look for, by the suffixes of what is shipped.
SHIPPED = {
    'configs': ('.py', '.yaml'),
    'projects': ('.py', '.md', '.txt', '.yaml', '.json'),
    'tools': ('.py', '.sh'),
}


def requirements(name: str) -> list[str]:
    lines = (HERE / 'requirements' / f'{name}.txt').read_text().splitlines()
    return [line for line in lines if line and not line.startswith('#')]


def shipped() -> list[Path]:
    """The files that a wheel holds beside the package, relative to the repository."""
    found = [path for name in SHIPPED for path in (HERE / name, *(HERE / name).rglob('*')) if path.is_file()]
    inner = (path.relative_to(HERE) for path in found)
    return sorted(path for path in inner if path.suffix in SHIPPED[path.parts[0]])


class BuildWithConfigs(build_py):
    """Puts configs, tools and projects into `mmairl/.mim` of the wheel; the source tree gets no links."""

    def run(self) -> None:
        if not self.editable_mode:
            # An earlier build's folder is used again; what has since been removed must not come back from it.
            shutil.rmtree(Path(self.build_lib) / 'mmairl', ignore_errors=True)
        super().run()
        if not self.editable_mode:
            for path in shipped():
                to = Path(self.build_lib) / 'mmairl' / '.mim' / path
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(HERE / path, to)


setup(
    name='mmairl',
    version=re.search(r"__version__ = '(.+)'", (HERE / 'mmairl' / '__init__.py').read_text())[1],
    description='The fair benchmark of augmentation-invariant representation learning, on OpenMMLab',
    long_description=(HERE / 'README.md').read_text(),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.10',
    packages=find_packages(include=['mmairl', 'mmairl.*']),
    package_data={
        'mmairl': ['*.sh'],
        'mmairl.data': ['*.yaml'],
        'mmairl.study': ['*.sh'],
        'mmairl.apis': ['*.jinja'],
        'mmairl.study.pages': ['templates/*'],
        'mmairl.report': ['templates/*', 'uplot/*', '*.json'],
    },
    cmdclass={'build_py': BuildWithConfigs},
    # The OpenMMLab platform comes in two stacks with the same import names, so neither is forced on the user.
    install_requires=requirements('runtime'),
    extras_require={
        'openmmlab': requirements('openmmlab'),
        'transfer': requirements('transfer'),
        'onnx': requirements('onnx'),
        'log': requirements('log'),
        'own': requirements('own'),
        'tests': requirements('tests'),
        'docs': requirements('docs'),
    },
)
