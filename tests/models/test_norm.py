"""SplitBN normalizes each part of a batch separately, and `each_view` runs a network so that SyncBN normalizes each view
separately.

tests/harness/two_processes.py tests ShuffleBN and SyncBN over processes.
"""

import pytest
import torch
from harness.errors import raises_code
from torch import nn

from mmairl.models import norm
from mmairl.models.norm import SplitBN, SyncBN, each_view


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


@pytest.mark.parametrize('layout', [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(('dtype', 'close'), [(torch.float64, 1e-12), (torch.float32, 2e-5), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize('kernels', ['LocalBatchNorm', 'SharedBatchNorm'])
def test_each_view_has_its_own_statistics(layout, dtype, close, kernels, monkeypatch):
    """Crops of two sizes take two passes, one for each size."""
    monkeypatch.setattr(norm, 'LocalBatchNorm', getattr(norm, kernels))
    torch.manual_seed(0)
    views = [
        torch.randn(6, 3, size, size).mul(3).add(7).to(dtype).contiguous(memory_format=layout) for size in (4, 3, 4, 3)
    ]
    ours, plain = SyncBN(3).to(torch.promote_types(dtype, torch.float32)), nn.BatchNorm2d(3).double()
    plain.load_state_dict(ours.state_dict())
    passes = []

    def run(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
        passes.append(len(images))
        return network(images)

    outputs = each_view(ours, run, [view.requires_grad_() for view in views])
    twins = [view.detach().double().requires_grad_() for view in views]
    expected = [plain(twins[number]) for number in (0, 2, 1, 3)]
    assert passes == [12, 12] and all(output.is_contiguous(memory_format=layout) for output in outputs)
    pairs = list(zip(outputs, (expected[number] for number in (0, 2, 1, 3))))
    for network in zip(*pairs):
        sum((number * output.double().square()).sum() for number, output in enumerate(network, 1)).backward()
    pairs += zip([view.grad for view in views], [twin.grad for twin in twins])
    pairs += zip(
        [*ours.buffers(), *(w.grad / 100 for w in ours.parameters())],
        [*plain.buffers(), *(w.grad / 100 for w in plain.parameters())],
    )
    for one, other in pairs:
        torch.testing.assert_close(one.double(), other.double(), atol=close, rtol=close)


def test_meta_tensors_share_a_pass():
    outputs = each_view(
        SyncBN(3).to('meta'), lambda network, images: network(images), [torch.empty(2, 3, 4, 4, device='meta')] * 2
    )
    assert [output.shape for output in outputs] == [(2, 3, 4, 4)] * 2


def test_views_of_two_networks_do_not_mix():
    """A pass of one network does not change the norms of another."""
    one, other = SyncBN(3), SyncBN(3)
    x = torch.randn(4, 3, 2, 2)

    def run(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
        assert (one.views, other.views) == (2, 1)
        return network(images)

    each_view(one, run, [x, x])
    assert one.views == 1
