"""`mmairl::NAME.py`: a config of this package by its name, wherever mmengine reads configs, from a wheel and from a checkout.

mmengine itself keeps a closed list of packages, wants a folder before the name, and looks in `.mim`, which a checkout does not
have. Such a base is inherited as by its path: it gets no scope of its own beyond the `default_scope` that it sets.
"""

import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.config import utils as by_mmengine

from mmairl.errors import UserError

PREFIX = 'mmairl::'
PACKAGE = Path(__file__).resolve().parent
# A wheel's configs lie inside of the package, a checkout's beside it.
HOMES = (PACKAGE / '.mim', PACKAGE.parent)


def home() -> Path:
    """The folder that holds our `configs`, `tools` and `projects`."""
    return next(folder for folder in HOMES if (folder / 'configs' / '_base_').is_dir())


def config_path(name: str) -> Path:
    """The file that `mmairl::NAME.py` or `mmairl::projects/PROJECT/configs/NAME.py` names.

    >>> config_path('mmairl::mocov2plus_r50_200e.py').name
    'mocov2plus_r50_200e.py'
    """
    inner = name.removeprefix(PREFIX)
    root = home() if inner.startswith('projects/') else home() / 'configs'
    path = (root / inner).resolve()
    if not path.is_relative_to(root) or not path.is_file():
        known = [file.relative_to(root).as_posix() for file in root.rglob('*.py')]
        close = get_close_matches(inner, known, n=1)
        raise UserError(f"there is no config '{name}'" + (f"; did you mean '{PREFIX}{close[0]}'?" if close else ''))
    if root == home() and str(root) not in sys.path:
        sys.path.append(str(root))  # where a project's config imports its own parts from
    return path


def _of_base(theirs: Callable) -> Callable:
    """mmengine's path and scope of a `_base_`, and those of our names."""

    def path_and_scope(base: str, filename: str) -> tuple[str, str | None]:
        return (str(config_path(base)), None) if base.startswith(PREFIX) else theirs(base, filename)

    return path_and_scope


def _of_package(theirs: Callable) -> Callable:
    """The package and path that `mmengine.hub.get_config` asks for; joined to a folder, an absolute path stays as it is."""

    def package_and_path(name: str) -> tuple[str, str]:
        return ('mmairl', str(config_path(name))) if name.startswith(PREFIX) else theirs(name)

    return package_and_path


def _of_model(theirs: Callable) -> Callable:
    """What a package's metafile says of a config; of an absolute path that is nothing, which mmengine takes as an answer."""

    def metainfo(package: str, path: str) -> dict[str, Any]:
        if Path(path).is_absolute():
            raise ValueError(f'{path} is a file, not the name of a model')
        return theirs(package, path)

    return metainfo


def teach_mmengine() -> None:
    """Replace the three look-ups, also in `mmengine.hub` where it has been imported before."""
    if getattr(by_mmengine, 'knows_mmairl', False):
        return
    by_mmengine.knows_mmairl = True
    Config._get_cfg_path = staticmethod(_of_base(Config._get_cfg_path))
    for name, ours in (('_get_package_and_cfg_path', _of_package), ('_get_cfg_metainfo', _of_model)):
        replaced = ours(getattr(by_mmengine, name))
        for module in (by_mmengine, sys.modules.get('mmengine.hub.hub')):
            if module is not None:
                setattr(module, name, replaced)
