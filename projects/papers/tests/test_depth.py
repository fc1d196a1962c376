"""The components for depth estimation equal independent implementations."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from projects.papers.depth import NYUAugmentation, UpProjection, UpProjectionHead, reverse_huber

BN = dict(type='BN')


def normed(x, convolution, norm):
    """Return the convolved input after batch norm with the running statistics, computed by functions."""
    padding = convolution.weight.shape[-1] // 2
    x = F.conv2d(x, convolution.weight, padding=padding)
    return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)


def test_up_projection_equals_an_independent_assembly():
    torch.manual_seed(0)
    block = UpProjection(6, 4, BN).eval()
    for norm in block.modules():
        if isinstance(norm, nn.BatchNorm2d):
            for values in (norm.running_mean, norm.weight.data, norm.bias.data):
                values.normal_()
            norm.running_var.uniform_(0.5, 2)
    x = torch.randn(2, 6, 5, 7)
    big = torch.zeros(2, 6, 10, 14)
    big[:, :, ::2, ::2] = x
    first, first_norm, _, second, second_norm = block.branch
    left = F.relu(normed(big, first, first_norm))
    left = normed(left, second, second_norm)
    right = normed(big, *block.shortcut)
    torch.testing.assert_close(block(x), F.relu(left + right))


def test_head_enlarges_its_input_sixteenfold():
    head = UpProjectionHead(32, (16, 8, 8, 4), norm_cfg=BN)
    assert head((None, torch.randn(2, 32, 2, 3))).shape == (2, 1, 32, 48)


def test_reverse_huber_equals_its_formula():
    generator = np.random.default_rng(0)
    depth = generator.uniform(1, 9, (2, 1, 6, 7))
    truth = generator.uniform(1, 9, (2, 1, 6, 7))
    truth[0, 0, :3] = 0
    errors = np.abs(depth - truth)[truth > 0]
    c = errors.max() / 5
    losses = [e if e <= c else (e * e + c * c) / (2 * c) for e in errors]
    loss = reverse_huber(torch.tensor(depth), torch.tensor(truth))
    assert loss.item() == pytest.approx(np.mean(losses))


def test_unknown_depth_gives_no_gradient():
    depth = torch.ones(1, 1, 2, 2, requires_grad=True)
    loss = reverse_huber(depth, torch.zeros(1, 1, 2, 2))
    loss.backward()
    assert loss.item() == 0
    assert depth.grad.abs().sum() == 0


def test_views_keep_image_and_depth_together():
    np.random.seed(0)
    rows, columns = np.mgrid[:240, :320]
    colors = [columns * 255 // 319, rows * 255 // 239, np.full_like(columns, 128)]
    image = np.stack(colors, axis=2).astype(np.uint8)
    depth = columns.astype(np.float32) + 1
    flips = 0
    grays = 0
    for _ in range(40):
        out = NYUAugmentation(crop=(304, 228))(dict(img=image, gt_depth_map=depth))
        assert out['img'].shape == (228, 304, 3)
        assert out['gt_depth_map'].shape == (228, 304)
        left, right = out['gt_depth_map'][0, [0, -1]]
        # The crop has the middle 304 of the 320 columns.
        assert sorted([left, right]) == [9.0, 312.0]
        flips += left > right
        grays += np.ptp(out['img'].astype(int), axis=2).max() == 0
    assert 8 < flips < 32
    assert 4 < grays < 24
