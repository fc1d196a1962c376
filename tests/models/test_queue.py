"""KeyQueue contains the same keys as a plain list."""

import pytest
import torch

from mmairl.models.queue import KeyQueue


@pytest.mark.parametrize('batch', [1, 3, 10])
def test_newest_keys_stay_in_order(batch):
    queue = KeyQueue(10, 2)
    newest = list(queue.vectors.clone())
    for _ in range(9):
        keys = torch.randn(batch, 2)
        queue.enqueue(keys)
        newest = (newest + list(keys))[-10:]
        assert torch.equal(queue.vectors.roll(-queue.position, 0), torch.stack(newest))


def test_empty_start_offers_real_keys_only():
    queue, again = (KeyQueue(4, 2, start='empty') for _ in range(2))
    assert len(queue.negatives()) == 0
    keys = torch.randn(3, 2)
    queue.enqueue(keys)
    again.load_state_dict(queue.state_dict())
    assert torch.equal(queue.negatives(), keys) and torch.equal(again.negatives(), keys)
    again.enqueue(keys)
    assert len(again.negatives()) == 4 and again.position == 2
