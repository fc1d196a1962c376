"""Build a wheel that also contains configs and tools, in `mmairl/.mim`. All other settings are in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
# OpenMMLab's package manager, and names such as `mmairl::NAME.py`, need the files in these folders with these suffixes.
SHIPPED = {
    'configs': ('.md', '.npy', '.py', '.yaml', '.yml'),
    'tools': ('.py', '.sh'),
}


def shipped() -> list[Path]:
    """Return the files outside the package that the wheel contains, relative to the repository."""
    files = [Path('model-index.yml')]
    for folder, suffixes in SHIPPED.items():
        for path in (HERE / folder).rglob('*'):
            if path.is_file() and path.suffix in suffixes:
                files.append(path.relative_to(HERE))
    return sorted(files)


class BuildWithConfigs(build_py):
    """Copy configs and tools into the wheel, without a change of the source tree."""

    def run(self) -> None:
        if not self.editable_mode:
            # An earlier build may have left files that have been removed since.
            shutil.rmtree(Path(self.build_lib) / 'mmairl', ignore_errors=True)
        super().run()
        if not self.editable_mode:
            for path in shipped():
                target = Path(self.build_lib) / 'mmairl' / '.mim' / path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(HERE / path, target)


setup(cmdclass={'build_py': BuildWithConfigs})
