"""The queue against a list."""

import pytest
import torch

from mmairl.errors import UserError
from mmairl.models.queue import KeyQueue


@pytest.mark.parametrize('batch', [1, 3, 10])
def test_it_keeps_the_newest_keys_in_order_at_any_batch_size(batch):
    queue, kept = KeyQueue(10, 2), []
    kept += list(queue.vectors.clone())
    for _ in range(9):
        keys = torch.randn(batch, 2)
        queue.enqueue(keys)
        kept = (kept + list(keys))[-10:]
        assert torch.equal(queue.vectors.roll(-queue.position, 0), torch.stack(kept))


def test_started_empty_it_offers_real_keys_only():
    queue = KeyQueue(4, 2, start='empty')
    assert len(queue.negatives()) == 0
    keys = torch.randn(3, 2)
    queue.enqueue(keys)
    assert torch.equal(queue.negatives(), keys)
    queue.enqueue(keys)
    assert len(queue.negatives()) == 4


def test_position_and_fill_are_saved_and_loaded():
    queue, again = KeyQueue(5, 2, start='empty'), KeyQueue(5, 2, start='empty')
    queue.enqueue(torch.randn(3, 2))
    again.load_state_dict(queue.state_dict())
    assert (again.position, again.filled) == (3, 3)
    assert torch.equal(again.negatives(), queue.negatives())


def test_more_keys_than_it_holds_are_refused():
    with pytest.raises(UserError, match='raise model.queue.length'):
        KeyQueue(4, 2).enqueue(torch.randn(5, 2))


def test_keys_on_their_way_are_waited_for_when_keys_are_wanted():
    """They have their place at once and their values on arrival: before negatives are read, more come or the queue is saved."""
    for want in (KeyQueue.negatives, KeyQueue.state_dict, lambda queue: queue.enqueue(torch.ones(2, 2))):
        queue, keys, waited = KeyQueue(5, 2), torch.zeros(3, 2), []

        def arrive(keys=keys, waited=waited):
            waited.append(True)
            keys.copy_(torch.arange(6.0).view(3, 2))

        queue.enqueue(keys, arrive)
        assert queue.position == 3 and not waited
        want(queue)
        assert waited == [True]
        assert torch.equal(queue.vectors[:3], torch.arange(6.0).view(3, 2))


def test_a_loaded_queue_forgets_what_was_on_its_way():
    queue, saved = KeyQueue(5, 2), KeyQueue(5, 2)
    queue.enqueue(torch.ones(3, 2), lambda: pytest.fail('waited for keys of the weights before'))
    queue.load_state_dict(saved.state_dict())
    assert torch.equal(queue.negatives(), saved.vectors) and queue.position == 0
