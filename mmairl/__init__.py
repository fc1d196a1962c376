"""mmairl: a plugin of OpenMMLab that compares self-supervised vision methods fairly.

`import mmairl` imports neither mmengine nor torch. mmengine imports `mmairl.registry` when a config first uses the scope
`mmairl`.
"""

from importlib import import_module  # noqa: TID251  modules of this package, by the fixed names below
from importlib.util import find_spec
from typing import Any

__version__ = '0.1.0'

# The public Python API. The module of a function is imported when the function is first used.
MODULE_OF = {
    'pretrain': 'mmairl.apis.pretrain',
    'embed': 'mmairl.evaluation.embed',
    'compare': 'mmairl.apis.compare',
    'sample': 'mmairl.apis.sample',
    'evaluate': 'mmairl.apis.evaluate',
    'map_images': 'mmairl.report.map_page',
}
__all__ = ['__version__', *MODULE_OF]

if find_spec('mmengine') is None:
    raise ImportError(
        "mmairl requires OpenMMLab, which is not installed; run: pip install 'mmairl[openmmlab]'"
    )


def __getattr__(name: str) -> Any:
    if name not in MODULE_OF:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from mmairl.errors import short_traceback

    return short_traceback(getattr(import_module(MODULE_OF[name]), name))


def __dir__() -> list[str]:
    return sorted([*globals(), *MODULE_OF])
