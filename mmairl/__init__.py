"""mmairl: the fair benchmark of augmentation-invariant representation learning, as an OpenMMLab plugin."""

import os
from importlib import import_module  # noqa: TID251  modules of ours by fixed names
from typing import Any

from mmairl.signals import listen_early

listen_early()

# A thread of OpenMP that waits gives its core up. By default it spins, which on a busy machine makes a step ten times as
# long. torch's library reads this when it is loaded, so tools/train.py imports mmairl first; after torch it does nothing.
os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')

try:
    from mmairl.config import teach_mmengine
except ModuleNotFoundError as missing:
    if missing.name != 'mmengine':
        raise
    raise ImportError(
        "mmairl runs on OpenMMLab, which is not installed; say: pip install 'mmairl[openmmlab]' "
        '(or, for the maintained fork: pip install onedl-mmengine onedl-mmcv onedl-mmpretrain)'
    ) from missing

__version__ = '0.1.0'

# What a line of Python calls, and where it is; imported when it is asked for.
CALLED = {
    'pretrain': 'mmairl.apis.pretrain',
    'embed': 'mmairl.evaluation.embed',
    'compare': 'mmairl.apis.compare',
    'map_images': 'mmairl.report.map_page',
}

teach_mmengine()  # so that `_base_ = 'mmairl::mocov2plus_r50_200e.py'` is known


def __getattr__(name: str) -> Any:
    if name == 'worth':
        raise AttributeError('mmairl.worth is now projects.worth: python -m projects.worth IMAGES, in a checkout')
    if name not in CALLED:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module(CALLED[name]), name)
