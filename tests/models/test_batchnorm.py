"""Virtual replicas; ShuffleBN and SyncBN over several processes are in tests/two_processes.py."""

import pytest
import torch
from torch import nn

from mmairl.errors import UserError
from mmairl.models.batchnorm import SplitBN


@pytest.mark.parametrize('shape', [(8, 5), (8, 5, 3, 3)])
def test_each_replica_has_statistics_of_its_own(shape):
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


def test_a_batch_that_cannot_be_split_is_one_sentence():
    with pytest.raises(UserError, match='a batch of 6 cannot be split among 4'):
        SplitBN(3, replicas=4)(torch.randn(6, 3, 2, 2))
