"""A small checkpoint that is part of the package."""

import shutil
from pathlib import Path

PATH = Path(__file__).parents[1] / 'sample' / 'epoch_20.pth'


def sample() -> Path:
    """Copy a small checkpoint to work_dirs/sample, and return its path. Every command that reads checkpoints can use it.

    It is the student of demo/mocov2plus_shapes_30e.py after 20 epochs, in float16: MoCo v2+ with a narrow ResNet-18, trained on
    12 000 synthetic images. Its folder also has the config, the logged values and the scores of the run.

    Example:
        >>> features, names = mmairl.embed(mmairl.sample(), 'images/')  # doctest: +SKIP
    """
    folder = Path('work_dirs/sample').absolute()
    # Commands write next to a checkpoint, and the installed package may be read-only.
    shutil.copytree(PATH.parent, folder, dirs_exist_ok=True)
    return folder / PATH.name
