"""Names of configs: `mmairl::NAME.py` in a `_base_` and in `mmengine.hub.get_config`.

mmengine resolves such names for a closed list of packages only, requires a folder in the name, and looks in `.mim`, which a
checkout does not have. It has no hook for other packages, so two of its functions are replaced as soon as it is imported.
Nothing is imported here, because `import mmairl` and the parsers of commands must take no time.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

PREFIX = 'mmairl::'
MODULE = 'mmengine.config.config'


class ConfigNames(MetaPathFinder):
    """Teach mmengine the names when its config module is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
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
    """Make `mmairl::` names known to mmengine, now or when it is imported."""
    if MODULE in sys.modules:
        teach_mmengine(sys.modules[MODULE])
    elif not any(isinstance(finder, ConfigNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, ConfigNames())


def teach_mmengine(module: ModuleType) -> None:
    """Replace the functions of mmengine that resolve names of configs. A name of ours behaves like a relative `_base_`."""
    from mmengine.config import utils

    if hasattr(utils, 'knows_mmairl'):
        return
    utils.knows_mmairl = True
    path_of_base = module.Config._get_cfg_path
    package_and_path = utils._get_package_and_cfg_path
    metainfo = utils._get_cfg_metainfo

    def our_base(base: str, filename: str) -> tuple[str, str | None]:
        return (path_of(base), None) if base.startswith(PREFIX) else path_of_base(base, filename)

    def our_path(name: str) -> tuple[str, str]:
        """Return an absolute path, which stays the same when mmengine joins it to the package's folder."""
        return ('mmairl', path_of(name)) if name.startswith(PREFIX) else package_and_path(name)

    def no_metainfo(package: str, path: str) -> dict[str, Any]:
        if Path(path).is_absolute():
            raise ValueError(f'{path} is a file, not the name of a model')  # mmengine then takes the path
        return metainfo(package, path)

    module.Config._get_cfg_path = staticmethod(our_base)
    for holder in (utils, sys.modules.get('mmengine.hub.hub')):  # the hub may have imported them by name
        if holder is not None:
            holder._get_package_and_cfg_path = our_path
            holder._get_cfg_metainfo = no_metainfo


def path_of(name: str) -> str:
    from mmairl.config import config_path  # imports mmengine

    return str(config_path(name))
