"""torchvision's RoIAlign and NMS, called through `mmcv.ops`, equal loops in float64 that follow mmcv's C++ sources."""

import importlib
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates
from torch import Tensor
from transfer.small_runs import overlap

from mmairl.errors import UserError
from mmairl.transfer.mmcv_ops import NAME, TorchvisionOps, use_torchvision_ops

use_torchvision_ops()
from mmcv.ops import RoIAlign, nms, roi_align, soft_nms  # noqa: E402

ROOT = Path(__file__).parents[2]


def roi_align_by_hand(images, rois, size, scale: float, samples: int, aligned: bool) -> np.ndarray:
    """Average a grid of points in each bin of each region.

    If `samples` is 0, the grid has about one point per pixel. The value at a point is interpolated bilinearly. A point
    outside the image has the value at the border if the distance is at most one pixel, and 0 otherwise.
    """
    out = np.zeros((len(rois), images.shape[1], *size))
    for region, (image, *corners) in enumerate(rois):
        left, top, right, bottom = (corner * scale - (0.5 if aligned else 0) for corner in corners)
        wide, high = right - left, bottom - top
        if not aligned:
            wide, high = max(wide, 1), max(high, 1)
        rows, columns = samples or math.ceil(high / size[0]), samples or math.ceil(wide / size[1])
        y = top + (np.arange(size[0] * rows) + 0.5) * high / (size[0] * max(rows, 1))
        x = left + (np.arange(size[1] * columns) + 0.5) * wide / (size[1] * max(columns, 1))
        y, x = np.meshgrid(y, x, indexing='ij')
        inside = (y >= -1) & (y <= images.shape[2]) & (x >= -1) & (x <= images.shape[3])
        for channel, values in enumerate(images[int(image)] if inside.size else ()):
            points = map_coordinates(values, (y, x), order=1, mode='nearest') * inside
            out[region, channel] = points.reshape(size[0], rows, size[1], columns).mean(axis=(1, 3))
    return out


def regions(generator: np.random.Generator, count: int, side: float) -> np.ndarray:
    """Return regions of two images. Some are partly outside the image, and the last one is a single point."""
    first = generator.uniform(-0.2 * side, 0.9 * side, (count, 2))
    boxes = np.concatenate([first, first + generator.uniform(0, 0.6 * side, (count, 2))], axis=1)
    boxes[-1, 2:] = boxes[-1, :2]
    return np.concatenate([generator.integers(0, 2, (count, 1)), boxes], axis=1)


@pytest.mark.parametrize('aligned', [True, False])
@pytest.mark.parametrize('samples', [0, 2])
def test_roi_align_equals_mmcv_with_gradient(aligned: bool, samples: int) -> None:
    generator = np.random.default_rng(0)
    for scale in (1.0, 1 / 16):
        images, rois = generator.normal(size=(2, 3, 9, 11)), regions(generator, 12, 10 / scale)
        expected = roi_align_by_hand(images, rois, (3, 2), scale, samples, aligned)
        layer = RoIAlign((3, 2), scale, samples, aligned=aligned)
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
            pooled_value = layer(torch.tensor(images, dtype=dtype), torch.tensor(rois, dtype=dtype))
            assert pooled_value.dtype == dtype
            np.testing.assert_allclose(pooled_value.numpy(), expected, rtol=0, atol=tolerance)
    images = torch.tensor(generator.normal(size=(2, 2, 5, 6)), requires_grad=True)
    rois = torch.tensor(regions(generator, 4, 6))
    assert torch.autograd.gradcheck(lambda x: roi_align(x, rois, (2, 3), 1.0, samples, 'avg', aligned), images)
    # The gradient with respect to the output is not contiguous in memory.
    upstream = torch.randn(2, 4, 2, 3, dtype=torch.float64).transpose(0, 1)
    pooled = roi_align(images, rois, (2, 3))
    (pooled_value,) = torch.autograd.grad(pooled, images, upstream, retain_graph=True)
    assert torch.equal(pooled_value, torch.autograd.grad(pooled, images, upstream.contiguous())[0])


def nms_by_hand(boxes: np.ndarray, scores: np.ndarray, threshold: float, offset: int) -> list[int]:
    """Return the indices of the selected boxes, best first.

    A box is removed if it overlaps a better one by more than the threshold.
    """
    selected: list[int] = []
    for index in np.argsort(-scores, kind='stable'):
        if all(overlap(boxes[index], boxes[better], offset) <= threshold for better in selected):
            selected.append(int(index))
    return selected


def drawn_boxes(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(count, 2, generator=generator) * 20
    boxes = torch.cat([corners, corners + 1 + torch.rand(count, 2, generator=generator) * 15], dim=1)
    return boxes, torch.rand(count, generator=generator)


@pytest.mark.parametrize('offset', [0, 1])
@pytest.mark.parametrize('threshold', [0.1, 0.7])
def test_nms_follows_mmcvs_rule(offset: int, threshold: float) -> None:
    boxes, scores = drawn_boxes(120)
    # Equal scores must keep their order, so some scores are made equal.
    scores[5:9] = scores[40]
    selected = nms_by_hand(boxes.double().numpy(), scores.numpy(), threshold, offset)
    assert 5 < len(selected) < 118
    detections, indices = nms(boxes, scores, threshold, offset)
    assert indices.tolist() == selected
    assert torch.equal(detections, torch.cat([boxes, scores[:, None]], dim=1)[selected])


def test_nms_keeps_overlap_equal_to_the_threshold() -> None:
    """As a float32, 0.3 is larger than as a float64. A comparison in float64 would remove the second box."""
    boxes = torch.tensor([[0.0, 0, 10, 1], [0, 0, 3, 1]])
    assert nms(boxes, torch.tensor([0.9, 0.8]), 0.3)[1].tolist() == [0, 1]
    assert nms(boxes, torch.tensor([0.9, 0.8]), 0.2999)[1].tolist() == [0]


@pytest.mark.skipif(not use_torchvision_ops(), reason='mmcv has its compiled ops')
def test_other_op_raises_when_called() -> None:
    boxes, scores = drawn_boxes(4)
    with pytest.raises(UserError, match="'softnms' has no torchvision equivalent"):
        soft_nms(boxes, scores)
    with pytest.raises(UserError, match="pool_mode='max'"):
        RoIAlign((2, 2), pool_mode='max')(torch.randn(1, 2, 4, 4), torch.tensor([[0, 0, 0, 3, 3.0]]))


# Each case has the CUDA version of mmcv's compiled ops, whether there is a GPU, and whether
# torchvision's ops are used.
BUILT = [('12.8', True, False), ('not available', False, False), ('not available', True, True), (None, False, True)]


@pytest.mark.parametrize(('built', 'gpu', 'replaced'), BUILT, ids=str)
def test_compiled_ops_are_used_if_they_fit(built, gpu, replaced, monkeypatch) -> None:
    def import_module(name: str) -> object:
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
def test_mmdet_and_mmseg_import_after_mmpretrain() -> None:
    code = (
        'import sys, mmairl.models, mmpretrain.models, mmcv.cnn.bricks.transformer; '
        "assert 'mmcv._ext' not in sys.modules, 'importing mmairl has replaced mmcv._ext'; "
        'import mmairl.transfer, mmdet.models, mmseg.models'
    )
    subprocess.run([sys.executable, '-c', code], check=True, env={**os.environ, 'PYTHONPATH': str(ROOT)})
