"""Detection and segmentation are optional: without mmdet there is nothing here to test."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from transfer.small_runs import write_data, write_pretrained

from mmairl.engine import launch
from mmairl.transfer.ops import use_torchvision_ops

collect_ignore_glob = [] if find_spec('mmdet') and find_spec('mmseg') else ['test_*.py']
use_torchvision_ops()  # before any test imports mmdet


@pytest.fixture(scope='session')
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp('drawn'))


@pytest.fixture(scope='session')
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a ResNet-18."""
    launch.register()
    return write_pretrained(tmp_path_factory.mktemp('pretrained') / 'r18.pth', 18)
