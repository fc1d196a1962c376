"""torchvision's RoIAlign and NMS, called through `mmcv.ops`, equal loops that follow mmcv's definitions."""

import importlib
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from harness.errors import raises_code

from mmairl.transfer.mmcv_ops import NAME, TorchvisionOps, use_torchvision_ops

use_torchvision_ops()
from mmcv.ops import RoIAlign, nms, roi_align, soft_nms  # noqa: E402


def test_roi_align_of_a_ramp_is_the_center_of_each_bin():
    rows, columns = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing='ij')
    images = torch.stack([rows, columns])[None].double()
    rois = torch.tensor([[0, 2.0, 3.0, 8.0, 9.0]]).double()
    pooled = RoIAlign((3, 2), 1.0, 2, aligned=True)(images, rois)
    expected_rows = 3 - 0.5 + (torch.arange(3) + 0.5) * 2
    expected_columns = 2 - 0.5 + (torch.arange(2) + 0.5) * 3
    torch.testing.assert_close(pooled[0, 0], expected_rows[:, None].expand(3, 2).double())
    torch.testing.assert_close(pooled[0, 1], expected_columns.expand(3, 2).double())
    images = torch.randn(1, 2, 5, 6, dtype=torch.float64, requires_grad=True)
    rois = torch.tensor([[0, 0.3, 1.2, 4.0, 3.5]]).double()
    assert torch.autograd.gradcheck(
        lambda x: roi_align(x, rois, (2, 3), 1.0, 2, 'avg', True), images
    )


def overlap(one, other, offset):
    width = min(one[2], other[2]) - max(one[0], other[0]) + offset
    height = min(one[3], other[3]) - max(one[1], other[1]) + offset
    areas = [(box[2] - box[0] + offset) * (box[3] - box[1] + offset) for box in (one, other)]
    both = max(0, width) * max(0, height)
    return both / (sum(areas) - both)


@pytest.mark.parametrize('offset', [0, 1])
def test_nms_follows_mmcvs_rule(offset):
    corners = torch.rand(100, 2) * 20
    boxes = torch.cat([corners, corners + 1 + torch.rand(100, 2) * 15], dim=1)
    scores = torch.rand(100)
    selected = []
    for index in np.argsort(-scores.numpy(), kind='stable'):
        if all(
            overlap(boxes[index].tolist(), boxes[other].tolist(), offset) <= 0.5
            for other in selected
        ):
            selected.append(int(index))
    assert nms(boxes, scores, 0.5, offset)[1].tolist() == selected and 3 < len(selected) < 97


@pytest.mark.skipif(not use_torchvision_ops(), reason='mmcv has its compiled ops')
def test_other_ops_are_errors_when_called():
    with raises_code('no-compiled-op'):
        soft_nms(torch.rand(4, 4), torch.rand(4))


# Each case has the CUDA version of mmcv's compiled ops, whether there is a GPU, and whether torchvision's ops are used.
BUILT = [
    ('12.8', True, False),
    ('not available', False, False),
    ('not available', True, True),
    (None, False, True),
]


@pytest.mark.parametrize(('built', 'gpu', 'replaced'), BUILT, ids=str)
def test_compiled_ops_are_used_if_they_fit(built, gpu, replaced, monkeypatch):
    def import_module(name):
        if name != NAME:
            return importlib.import_module(name)
        if built is None:
            raise ImportError('built for another torch')
        return SimpleNamespace(get_compiling_cuda_version=lambda: built)

    monkeypatch.delitem(sys.modules, NAME, raising=False)
    monkeypatch.setattr('mmairl.transfer.mmcv_ops.import_module', import_module)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: gpu)
    assert use_torchvision_ops() is replaced
    assert isinstance(sys.modules.get(NAME), TorchvisionOps) is replaced


@pytest.mark.slow
def test_only_the_named_module_replaces_ops():
    code = (
        'import sys, mmairl.models, mmairl.transfer, mmpretrain.models, mmcv.cnn.bricks.transformer; '
        "assert 'mmcv._ext' not in sys.modules; import mmairl.transfer.mmcv_ops, mmdet.models, mmseg.models"
    )
    subprocess.run([sys.executable, '-c', code], check=True)
