"""SplitBN normalizes each part of a batch, and `passes` divides views so that each view has its own statistics.

tests/harness/two_processes.py tests ShuffleBN and SyncBN over processes.
"""

import pytest
import torch
from harness.errors import raises_code
from torch import nn

from mmairl.models.norm import SplitBN, SyncBN, passes


@pytest.mark.parametrize('shape', [(8, 5), (8, 5, 3, 3)])
def test_each_replica_has_its_own_statistics(shape):
    x = torch.randn(shape, dtype=torch.float64)
    split = SplitBN(5, replicas=4).double()
    plain = (nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d)(5).double()
    nn.init.uniform_(split.weight)
    plain.weight.data.copy_(split.weight.data)
    expected = torch.cat([plain(part) for part in x.chunk(4)])
    torch.testing.assert_close(split(x), expected)
    mean = torch.stack([part.transpose(0, 1).flatten(1).mean(1) for part in x.chunk(4)]).mean(0)
    torch.testing.assert_close(split.running_mean, 0.1 * mean)
    plain.load_state_dict(split.state_dict())
    assert torch.equal(split.eval()(x), plain.eval()(x))


def test_unequal_replicas_raise():
    with raises_code('unequal-replicas'):
        SplitBN(3, replicas=4)(torch.randn(6, 3, 2, 2))


def test_each_view_has_its_own_statistics():
    views = [torch.randn(6, 3, size, size) * 3 + 7 for size in (4, 3, 4)]
    ours, plain = SyncBN(3), nn.BatchNorm2d(3)
    for (numbers, images), view in zip(passes(ours, dict(enumerate(views))), views):
        assert len(numbers) == 1 and torch.equal(ours(images), plain(view))
    assert torch.equal(ours.running_var, plain.running_var)


def test_views_share_a_pass_if_only_heads_have_batch_norm():
    network = nn.ModuleDict(dict(backbone=nn.Conv2d(3, 3, 1), head=SyncBN(3)))
    plain = nn.BatchNorm2d(3)
    views = {view: torch.randn(6, 3, 4, 4) * 3 + view for view in range(4)}
    shared = []
    for numbers, images in passes(network, views, masked=[1]):
        shared.append(numbers)
        expected = torch.cat([plain(views[view]) for view in numbers])
        assert torch.equal(network.head(images), expected)
    assert shared == [[0, 2, 3], [1]] and torch.equal(network.head.running_var, plain.running_var)


def test_views_share_a_pass_without_batch_norm():
    network = nn.Conv2d(3, 2, 1)
    views = {view: torch.randn(6, 3, size, size) for view, size in enumerate((4, 3, 4))}
    shared = []
    for numbers, images in passes(network, views):
        shared.append(numbers)
        assert torch.equal(images, torch.cat([views[view] for view in numbers]))
    assert shared == [[0, 2], [1]]
