"""The components for depth estimation equal independent implementations."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from projects.papers.depth import NYUAugmentation, UpProjection, UpProjectionHead, reverse_huber

BN = dict(type='BN')


def test_up_projection_equals_an_independent_assembly():
    torch.manual_seed(0)
    block = UpProjection(6, 4, BN).eval()
    for norm in (layer for layer in block.modules() if isinstance(layer, nn.BatchNorm2d)):
        for values in (norm.running_mean, norm.weight.data, norm.bias.data):
            values.normal_()
        norm.running_var.uniform_(0.5, 2)
    x = torch.randn(2, 6, 5, 7)
    big = torch.zeros(2, 6, 10, 14)
    big[:, :, ::2, ::2] = x

    def bn(y, layer):
        return F.batch_norm(y, layer.running_mean, layer.running_var, layer.weight, layer.bias)

    first, norm1, _, second, norm2 = block.branch
    left = bn(
        F.conv2d(
            F.relu(bn(F.conv2d(big, first.weight, padding=2), norm1)), second.weight, padding=1
        ),
        norm2,
    )
    right = bn(F.conv2d(big, block.shortcut[0].weight, padding=2), block.shortcut[1])
    torch.testing.assert_close(block(x), F.relu(left + right))
    head = UpProjectionHead(32, (16, 8, 8, 4), norm_cfg=BN)
    # The head multiplies the height and the width of its input by 16.
    assert head((None, torch.randn(2, 32, 2, 3))).shape == (2, 1, 32, 48)


def test_reverse_huber_equals_its_formula():
    generator = np.random.default_rng(0)
    depth, truth = generator.uniform(1, 9, (2, 1, 6, 7)), generator.uniform(1, 9, (2, 1, 6, 7))
    truth[0, 0, :3] = 0
    errors = [abs(d - t) for d, t in zip(depth.ravel(), truth.ravel()) if t > 0]
    c = max(errors) / 5
    expected = np.mean([e if e <= c else (e * e + c * c) / (2 * c) for e in errors])
    assert reverse_huber(torch.tensor(depth), torch.tensor(truth)).item() == pytest.approx(expected)
    nothing = torch.ones(1, 1, 2, 2, requires_grad=True)
    loss = reverse_huber(nothing, torch.zeros(1, 1, 2, 2))
    loss.backward()
    assert loss.item() == 0 and nothing.grad.abs().sum() == 0


def test_views_keep_image_and_depth_together():
    np.random.seed(0)
    y, x = np.mgrid[:240, :320]
    image = np.stack([x * 255 // 319, y * 255 // 239, np.full_like(x, 128)], axis=2).astype(
        np.uint8
    )
    depth = x.astype(np.float32) + 1
    flips = greys = 0
    for _ in range(40):
        out = NYUAugmentation(crop=(304, 228))(dict(img=image, gt_depth_map=depth))
        assert out['img'].shape == (228, 304, 3) and out['gt_depth_map'].shape == (228, 304)
        flipped = out['gt_depth_map'][0, 0] > out['gt_depth_map'][0, -1]
        flips += flipped
        # The crop has the middle 304 of the 320 columns, so its depth ranges from 9 to 312.
        assert sorted({out['gt_depth_map'][0, 0], out['gt_depth_map'][0, -1]}) == [9.0, 312.0]
        greys += np.ptp(out['img'].astype(int), axis=2).max() == 0
    assert 8 < flips < 32 and 4 < greys < 24
