"""Fixtures for the tests of mmairl.transfer. These tests are skipped if mmdet or mmseg is missing."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from harness.drawn_sets import write_coco, write_voc
from transfer.small_runs import write_masks, write_pretrained

from mmairl.engine import run
from mmairl.transfer.mmcv_ops import use_torchvision_ops

collect_ignore_glob = [] if find_spec('mmdet') and find_spec('mmseg') else ['test_*.py']
use_torchvision_ops()  # mmdet must not be imported before the ops are replaced


@pytest.fixture(scope='session')
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp('drawn')
    write_voc(root / 'voc', {'VOC2007': dict(trainval=6, test=3), 'VOC2012': dict(trainval=3)})
    write_coco(root / 'coco', dict(train2017=6, val2017=3))
    write_masks(root)
    return root


@pytest.fixture(scope='session')
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of a ResNet-18."""
    run.register()
    return write_pretrained(tmp_path_factory.mktemp('pretrained') / 'r18.pth', 18)
