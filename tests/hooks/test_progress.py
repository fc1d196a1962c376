"""Work whose output is a file says now and then how far it is."""

from types import SimpleNamespace

from mmairl.evaluation import features
from mmairl.hooks import log


def test_a_run_prints_a_line_each_half_minute_with_the_time_left(monkeypatch, capsys):
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=100.0)
    monkeypatch.setattr(log, 'time', clock)
    loss = SimpleNamespace(current=lambda: 6.25)
    hub = SimpleNamespace(log_scalars={'train/loss': loss})
    runner = SimpleNamespace(iter=20, max_iters=40, message_hub=hub)  # resumed
    hook = log.ProgressHook()
    hook.before_train(runner)
    for runner.iter in range(20, 30):
        clock.now += 12
        hook.after_train_iter(runner, runner.iter)
    said = capsys.readouterr().out.splitlines()
    # after 3, 6 and 9 steps of 12 s each: (20 - 3) * 12 s are left, and so on
    assert said == [
        'training 57%  loss 6.250  0:03:24 left',
        'training 65%  loss 6.250  0:02:48 left',
        'training 72%  loss 6.250  0:02:12 left',
    ]


def test_an_evaluation_does_so_as_well(monkeypatch, capsys):
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=0.0)
    monkeypatch.setattr(features, 'time', clock)
    for _ in features.progress([0] * 8, 'features'):
        clock.now += 20
    assert capsys.readouterr().err.splitlines() == ['features 25%', 'features 50%', 'features 75%']
