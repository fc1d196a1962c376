"""Values are logged as mmengine logs them, and the progress line shows the remaining time."""

import time
from types import SimpleNamespace

import torch
from mmengine.hooks import LoggerHook
from mmengine.logging import MessageHub

from mmairl.engine.hooks.progress import AsyncRuntimeInfoHook, ProgressHook


def runner_at(name: str, steps: int) -> SimpleNamespace:
    return SimpleNamespace(
        message_hub=MessageHub.get_instance(name),
        optim_wrapper=SimpleNamespace(),
        iter=0,
        max_iters=steps,
        hooks=[],
    )


def test_values_are_read_at_the_interval_and_at_the_end():
    runner, hook = runner_at('reads', 5), AsyncRuntimeInfoHook(interval=2)
    lengths = []
    for runner.iter in range(5):
        outputs = dict(loss=torch.tensor(float(runner.iter)), accuracy=0.5)
        hook.after_train_iter(runner, batch_idx=runner.iter, outputs=outputs)
        scalars = runner.message_hub.log_scalars
        lengths.append(len(scalars['train/loss'].data[0]) if 'train/loss' in scalars else 0)
    assert lengths == [0, 2, 2, 4, 5]
    assert scalars['train/loss'].data[0].tolist() == [0, 1, 2, 3, 4]
    assert scalars['train/accuracy'].current() == 0.5


def test_logged_losses_are_those_of_their_steps():
    runner, hook = runner_at('logged', 60), AsyncRuntimeInfoHook(interval=50)
    runner.hooks = [hook, LoggerHook(interval=20)]
    for runner.iter in range(40):
        loss = dict(loss=torch.tensor(float(runner.iter)))
        hook.after_train_iter(runner, batch_idx=runner.iter, outputs=loss)
        if (runner.iter + 1) % 20 == 0:
            assert runner.message_hub.get_scalar('train/loss').current() == runner.iter


def test_progress_line_shows_values_and_time_left(monkeypatch, capsys):
    clock = iter([100.0, 110.0, 150.0, 200.0])
    monkeypatch.setattr(time, 'monotonic', lambda: next(clock))
    runner, hook = runner_at('line', 10), ProgressHook()
    runner.message_hub.update_scalar('train/loss', 1.5)
    hook.before_train(runner)
    for runner.iter in (0, 4, 9):
        hook.after_train_iter(runner)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        'training  50%  loss 1.500  0:00:50 left',
        'training 100%  loss 1.500  0:00:00 left',
    ]
