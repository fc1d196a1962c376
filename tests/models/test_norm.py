"""SplitBN normalizes each part of a batch, and `each_view` runs a network so that each view has its own statistics.

tests/harness/two_processes.py tests ShuffleBN and SyncBN over processes.
"""

import pytest
import torch
from harness.errors import raises_code
from torch import nn

from mmairl.models.norm import SplitBN, SyncBN, each_view, first_view


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
    outputs = each_view(ours, lambda network, images: network(images), views)
    for output, view in zip(outputs, views):
        assert torch.equal(output, plain(view))
    assert torch.equal(ours.running_var, plain.running_var)


def test_views_share_a_pass_without_batch_norm():
    network, sizes = nn.Conv2d(3, 2, 1), []

    def run(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
        sizes.append((len(images), len(first_view(network, images))))
        return network(images)

    views = [torch.randn(6, 3, size, size) for size in (4, 3, 4)]
    outputs = each_view(network, run, views)
    assert sizes == [(12, 6), (6, 6)]
    for output, view in zip(outputs, views):
        torch.testing.assert_close(output, network(view))
