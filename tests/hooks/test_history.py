"""Logged values: the same numbers as mmengine's, later and fewer."""

import copy
import pickle

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer, MessageHub

from mmairl.hooks.log import KEPT, DeviceHistory, record


def test_statistics_are_mmengines_whatever_is_mixed():
    ours, theirs = DeviceHistory(), HistoryBuffer()
    for step in range(50):
        value = float(np.sin(step))
        ours.update(torch.tensor(value, dtype=torch.float64) if step % 3 else value)
        theirs.update(value)
        if step % 7 == 0:
            assert ours.current() == theirs.current()
    for name in ('mean', 'min', 'max'):
        assert ours.statistics(name, 10) == theirs.statistics(name, 10)
    for saved in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert saved is ours or type(saved) is HistoryBuffer
        assert all((mine == other).all() for mine, other in zip(saved.data, theirs.data))


def test_tensors_are_not_read_until_somebody_asks_and_then_all_at_once(monkeypatch):
    copies = []
    to_list = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, 'tolist', lambda self: copies.append(len(self)) or to_list(self))
    monkeypatch.setattr(torch.Tensor, 'item', lambda self: pytest.fail('waited for one value'))
    history = DeviceHistory()
    for step in range(20):
        history.update(torch.tensor(float(step)))
    assert copies == []
    assert history.mean(4) == 17.5 and copies == [20]
    assert history.current() == 19 and copies == [20]


def test_it_keeps_what_a_log_can_average_over_and_no_more():
    history = DeviceHistory()
    for step in range(KEPT + 500):
        history.update(torch.tensor(float(step)) if step % 2 else float(step))
    assert len(history.data[0]) == len(history.data[1]) == KEPT and history.current() == KEPT + 499


def test_a_hub_that_mmengine_began_is_taken_over():
    hub = MessageHub('taken over')
    hub.update_scalar('train/loss', 2.0)
    record(hub, 'train/loss', torch.tensor(4.0))
    hub.update_scalar('train/loss', 6.0)
    again = MessageHub('again')
    again.load_state_dict(hub.state_dict())
    assert again.get_scalar('train/loss').data[0].tolist() == [2, 4, 6]
