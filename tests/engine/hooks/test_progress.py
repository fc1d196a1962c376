"""Logged values equal mmengine's, but no step waits for them. The progress line states loss and remaining time."""

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer, MessageHub
from torch.utils.data import DataLoader

from mmairl.data import training_images
from mmairl.data.training_images import TrainingImages
from mmairl.engine.hooks import progress
from mmairl.engine.hooks.progress import KEPT, DeviceHistory, record
from mmairl.evaluation import features


def test_statistics_equal_mmengines():
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


def test_tensors_are_read_together_on_demand(monkeypatch):
    copies = []
    to_list = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, 'tolist', lambda self: copies.append(len(self)) or to_list(self))
    monkeypatch.setattr(torch.Tensor, 'item', lambda self: pytest.fail('the run waited for a single value'))
    history = DeviceHistory()
    for step in range(20):
        history.update(torch.tensor(float(step)))
    assert copies == []
    assert history.mean(4) == 17.5 and copies == [20]
    assert history.current() == 19 and copies == [20]


def test_history_is_bounded():
    history = DeviceHistory()
    for step in range(KEPT + 500):
        history.update(torch.tensor(float(step)) if step % 2 else float(step))
    assert len(history.data[0]) == len(history.data[1]) == KEPT and history.current() == KEPT + 499


def test_histories_of_mmengine_are_replaced():
    hub = MessageHub('taken over')
    hub.update_scalar('train/loss', 2.0)
    record(hub, 'train/loss', torch.tensor(4.0))
    hub.update_scalar('train/loss', 6.0)
    again = MessageHub('again')
    again.load_state_dict(hub.state_dict())
    assert again.get_scalar('train/loss').data[0].tolist() == [2, 4, 6]


@pytest.mark.parametrize('watched', [None, 'is_terminal', 'is_jupyter'])
def test_progress_is_lines_in_files_and_bars_on_ttys(watched, monkeypatch, capsys):
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=100.0)
    monkeypatch.setattr(progress, 'time', clock)
    console = dict(is_terminal=False, is_jupyter=False, width=50) | {watched or 'is_file': True}
    monkeypatch.setattr(progress, 'Console', lambda: SimpleNamespace(**console))
    loss = SimpleNamespace(current=lambda: 6.25)
    hub = SimpleNamespace(log_scalars={'train/loss': loss})
    # The run was resumed at iteration 20.
    runner = SimpleNamespace(iter=20, max_iters=40, message_hub=hub)
    hook = progress.ProgressHook()
    hook.before_train(runner)
    for runner.iter in range(20, 30):
        clock.now += 0.4 if watched else 12
        hook.after_train_iter(runner)
    # After 3, 6 and 9 steps of 12 s each, the remaining times are (20 - 3) * 12 s, (20 - 6) * 12 s
    # and (20 - 9) * 12 s.
    times = ('0:00:07', '0:00:06', '0:00:04') if watched else ('0:03:24', '0:02:48', '0:02:12')
    lines = [f'{share}  loss 6.250  {time_left} left' for share, time_left in zip(('57%', '65%', '72%'), times)]
    bars = [f'{"█" * full:░<12} {line}'[:49].ljust(49) + '\r' for full, line in zip((6, 7, 8), lines)]
    assert capsys.readouterr().out == ''.join(bars if watched else [f'training {line}\n' for line in lines])


@pytest.mark.parametrize(('seconds', 'short'), [(0.08, False), (0.32, True)])
def test_loader_speed_is_logged_next_to_step_speed(monkeypatch, seconds, short):
    data = TrainingImages(list(range(64)), workers=False)
    clock = SimpleNamespace(perf_counter=lambda: clock.now, now=0.0)
    monkeypatch.setattr(training_images, 'time', clock)
    monkeypatch.setattr(data, 'sample', lambda index, seed: setattr(clock, 'now', clock.now + seconds / 8))
    loader = DataLoader(data, batch_size=8, collate_fn=len)
    assert list(loader) == [8] * 8 and data.rate == pytest.approx(8 / seconds)
    hub, lines = MessageHub('fed'), []
    for _ in range(4):
        hub.update_scalar('train/time', 0.1 + seconds)
        hub.update_scalar('train/data_time', seconds)
    logger = SimpleNamespace(info=lines.append, warning=lambda text: lines.append(f'warning: {text}'))
    progress.log_loader_speed(SimpleNamespace(train_dataloader=loader, message_hub=hub, logger=logger), 2)
    expected = f'0 data workers can load {8 / seconds:.0f} images/s, and training can use 80 images/s'
    assert len(lines) == 1 and lines[0].removeprefix('warning: ').startswith(expected)
    assert lines[0].startswith('warning') == short == ('raise train_dataloader.num_workers' in lines[0])


def test_evaluation_prints_its_progress(monkeypatch, capsys):
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=0.0)
    monkeypatch.setattr(features, 'time', clock)
    for _ in features.show_progress([0] * 8, 'features'):
        clock.now += 20
    assert capsys.readouterr().err.splitlines() == ['features 25%', 'features 50%', 'features 75%']
