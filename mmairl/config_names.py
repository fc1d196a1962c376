"""Config names of the form `mmairl::NAME.py`, which users write in a `_base_` and in `mmengine.hub.get_config`.

mmengine resolves names of this form only for a fixed list of packages. It requires a folder in the name, and it looks for the
file in the package's folder `.mim`, which a checkout does not have. mmengine has no extension point for other packages.
Therefore this module replaces mmengine's functions as soon as mmengine is imported.

This module does not import mmengine itself, because that import takes seconds, and `import mmairl` and the parsers of commands
must be fast.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from mmairl.errors import UserError, closest

PREFIX = 'mmairl::'
PACKAGE = Path(__file__).resolve().parent
# A wheel contains the configs inside the package. A checkout contains them next to the package.
HOMES = (PACKAGE / '.mim', PACKAGE.parent)
MODULE = 'mmengine.config.config'
# Older studies and commands may name a folder of configs that has moved. This table maps each former folder to the current
# folder.
MOVED_FOLDERS = {
    'projects/byol_variants/configs': 'byol_variants',
    'projects/more_methods/configs': 'methods',
}


def home() -> Path:
    """Return the folder that contains `configs` and `tools`. In a checkout, it also contains `projects`."""
    return next(folder for folder in HOMES if (folder / 'configs' / '_base_').is_dir())


def config_path(name: str) -> Path:
    """Return the path of the config or study that a name refers to.

    A name is `mmairl::NAME.py`, `mmairl::studies/NAME.yaml` or `mmairl::projects/PROJECT/configs/NAME.py`.

    >>> config_path('mmairl::mocov2plus_r50_200e.py').name
    'mocov2plus_r50_200e.py'
    """
    inner = current_name(name).removeprefix(PREFIX)
    of_project = inner.startswith('projects/')
    root = home() if of_project else home() / 'configs'
    if of_project and not (root / 'projects').is_dir():
        raise UserError(
            f"'{name}': no such config, because the installed package has no projects; run the command in a checkout of the "
            'repository',
            code='project-not-installed',
        )
    path = (root / inner).resolve()
    if not path.is_relative_to(root) or not path.is_file():
        known = [
            PREFIX + file.relative_to(root).as_posix()
            for file in root.rglob(f'*{Path(inner).suffix}')
        ]
        raise UserError(
            f"'{name}': no such config{closest(name, known, 0.6)}; see configs/ for the names",
            code='no-config',
        )
    if of_project:
        import_from(root)
    return path


def current_name(path: str) -> str:
    """Return the current `mmairl::` name of a config whose folder has moved. Return any other path unchanged."""
    folder, _, file = path.rpartition('/')
    for old, new in MOVED_FOLDERS.items():
        if folder.endswith(old) and (home() / 'configs' / new / file).is_file():
            return f'{PREFIX}{new}/{file}'
    return path


def import_from(folder: Path) -> None:
    """Make a folder importable, so that the config of a project can import the project's modules."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


class ConfigNames(MetaPathFinder):
    """An import hook that calls `teach_mmengine` when mmengine's config module is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_teach(module: ModuleType) -> None:
            execute(module)
            teach_mmengine(module)

        spec.loader.exec_module = execute_and_teach
        return spec


def register_config_names() -> None:
    """Make mmengine resolve `mmairl::` names. If mmengine is not imported yet, do this as soon as it is imported."""
    if MODULE in sys.modules:
        teach_mmengine(sys.modules[MODULE])
    elif not any(isinstance(finder, ConfigNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, ConfigNames())


def teach_mmengine(module: ModuleType) -> None:
    """Replace the functions of mmengine that resolve config names. In a `_base_`, the
    name `mmairl::NAME.py` then works like a relative path.
    """
    from mmengine.config import utils

    if hasattr(utils, 'knows_mmairl'):
        return
    utils.knows_mmairl = True
    path_of_base = module.Config._get_cfg_path
    package_and_path = utils._get_package_and_cfg_path
    metainfo = utils._get_cfg_metainfo

    def our_base(base: str, filename: str) -> tuple[str, str | None]:
        if base.startswith(PREFIX):
            return str(config_path(base)), None
        return path_of_base(base, filename)

    def our_path(name: str) -> tuple[str, str]:
        """Return the package and the path of a config.

        The path is absolute. Therefore it does not change when mmengine joins the package's folder and this path.
        """
        if name.startswith(PREFIX):
            return 'mmairl', str(config_path(name))
        return package_and_path(name)

    def no_metainfo(package: str, path: str) -> dict[str, Any]:
        if Path(path).is_absolute():
            # mmengine catches this error, and then loads the config at `path`.
            raise ValueError(f'{path} is not the name of a model')
        return metainfo(package, path)

    module.Config._get_cfg_path = staticmethod(our_base)
    # `mmengine.hub` imports these functions by name, so they must be replaced there, too.
    for holder in (utils, sys.modules.get('mmengine.hub.hub')):
        if holder is not None:
            holder._get_package_and_cfg_path = our_path
            holder._get_cfg_metainfo = no_metainfo
