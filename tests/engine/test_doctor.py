"""`mmairl doctor` finds a planted fault by continuing the run with different remedies."""

from math import nan
from pathlib import Path

import pytest
from harness import resume as resuming
from harness.errors import raises_code

from mmairl.cli.doctor import main
from mmairl.engine import doctor
from mmairl.engine.checkpoint import StoredCheckpoint
from mmairl.engine.doctor import Outcome, Remedy, Sign, Trial, by_likelihood, first_sign, remedies, treat
from mmairl.engine.fork import Fork
from mmairl.engine.health import QUANTITIES

# For each planted fault: the changed options, the quantity that shows the fault, and the remedy.
FAULTS = {
    'teacher without momentum': (
        {'default_hooks.momentum': dict(type='MomentumHook', base=0.0, schedule='constant')},
        'teacher_distance',
        'average the teacher over more steps',
    ),
    'learning rate': (
        {'optim_wrapper.optimizer.lr': 300.0},
        'spread_key',
        'lower the learning rate to a tenth',
    ),
    'queue longer than the data': (
        {'model.queue.length': 64},
        'queue_epochs',
        'shorten the queue',
    ),
}


def planted(folder: Path, changes: dict) -> Path:
    cfg = resuming.config('shuffle_bn', str(folder), epochs=6, steps=4, every=4)
    cfg.default_hooks.health.interval = 1
    cfg.merge_from_dict(changes)
    resuming.run(cfg)
    return folder


# projects/benchmark/doctor_faults.py plants twelve faults; these three are enough here.
NAMES = [
    'teacher without momentum',
    pytest.param('learning rate', marks=pytest.mark.slow),
    pytest.param('queue longer than the data', marks=pytest.mark.slow),
]


@pytest.mark.parametrize('name', NAMES)
def test_planted_fault_is_among_the_first_two(tmp_path, name):
    changes, quantity, remedy = FAULTS[name]
    run = planted(tmp_path / 'run', changes)
    sign = first_sign(run)
    assert sign.quantity.name == quantity
    trial = Trial(run, sign, steps=6)
    outcomes = by_likelihood(treat(trial, repeats=1))
    assert remedy in [one.remedy.words for one in outcomes[:2]]
    assert outcomes[0].gain > 0.05
    assert trial.first < sign.iteration < trial.last


@pytest.mark.slow
def test_repeats_give_an_interval(tmp_path):
    changes, _, remedy = FAULTS['queue longer than the data']
    run = planted(tmp_path / 'run', changes)
    outcome = next(treat(Trial(run, first_sign(run), steps=4), repeats=2))
    assert outcome.remedy.words == remedy
    assert outcome.low <= outcome.gain <= outcome.high
    assert outcome.helps


CONFIG = """
model = dict(head=dict(temperature=5.0))
optim_wrapper = dict(optimizer=dict(lr=0.1))
total_batch_size = 8
train_dataloader = dict(dataset=dict(type="Shapes"))
"""


def test_run_without_bad_sign_lists_unusual_settings(tmp_path, capsys):
    run = tmp_path / 'run'
    (run / 'a/vis_data').mkdir(parents=True)
    (run / 'a/vis_data/config.py').write_text(CONFIG)
    lines = [f'{{"health_spread_key": 0.9, "step": {step}}}' for step in (1, 20)]
    (run / 'a/vis_data/scalars.json').write_text('\n'.join(lines))
    main([str(run)])
    output = capsys.readouterr().out
    assert 'no bad sign' in output
    assert 'use a usual temperature (--cfg-options model.head.temperature=0.2)' in output


def test_usual_settings_get_no_remedy_of_their_own(tmp_path):
    run = planted(tmp_path / 'run', {'train_cfg.max_epochs': 1, 'param_scheduler.0.end': 1})
    words = [remedy.words for remedy in remedies(Fork(run).config())]
    assert words == [
        'shorten the queue',
        'lower the learning rate to a tenth',
        'clip gradients at norm 1',
        'use the usual views',
    ]


def test_forks_last_until_after_the_sign(monkeypatch):
    """The continued runs must reach the first bad value. Otherwise, even the unchanged run would look healthy."""
    stored = [StoredCheckpoint(Path('a'), dict(iter=iteration)) for iteration in (300, 600, 900)]
    monkeypatch.setattr(doctor, 'checkpoints_of_run', lambda work_dir: stored)
    monkeypatch.setattr(doctor, 'length_of_run', lambda work_dir: 0)
    late = Trial(Path(), Sign(QUANTITIES[0], 890, nan), steps=200)
    assert (late.first, late.last) == (600, 990)
    early = Trial(Path(), Sign(QUANTITIES[0], 610, nan), steps=200)
    assert (early.first, early.last) == (600, 800)
    monkeypatch.setattr(doctor, 'length_of_run', lambda work_dir: 900)
    assert Trial(Path(), late.sign, steps=200).last == 900, 'forks cannot train beyond the end of the run'


def test_sign_at_the_end_of_a_run_is_measured(tmp_path):
    changes, _, _ = FAULTS['teacher without momentum']
    run = planted(tmp_path / 'run', changes | {'train_cfg.max_epochs': 2, 'param_scheduler.0.end': 2})
    at_end = Trial(run, Sign(first_sign(run).quantity, 8, 0.0), steps=6)
    assert at_end.last == 8 and at_end.severity({}, 0) >= 1


def test_fork_needs_a_checkpoint_or_random_weights(tmp_path):
    short = {'train_cfg.max_epochs': 1, 'param_scheduler.0.end': 1}
    first = planted(tmp_path / 'first', short)
    second = planted(tmp_path / 'second', short | {'load_from': str(first / 'iter_4.pth')})
    sign = Sign(QUANTITIES[0], 2, nan)
    assert Trial(first, sign).start is None
    with raises_code('no-checkpoint-before'):
        _ = Trial(second, sign).start


def test_cause_precedes_remedies_of_every_fault():
    slower = Outcome(Remedy('lower the rate', {}), gain=1.0)
    cause = Outcome(Remedy('use a usual temperature', {}, specific=True), gain=0.6)
    weak = Outcome(Remedy('lower the weight decay', {}, specific=True), gain=0.4)
    failed = Outcome(Remedy('use float32', {}, specific=True), error='no')
    assert by_likelihood([slower, weak, failed, cause]) == [cause, slower, weak, failed]
