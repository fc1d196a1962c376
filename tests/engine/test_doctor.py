"""A planted fault is found by forks of remedies."""

from pathlib import Path

import pytest
from harness import resume as resuming

from mmairl.cli.doctor import main
from mmairl.engine.doctor import first_sign, last_good, remedies, treat
from mmairl.engine.fork import Fork

# The planted fault, the quantity that shows it, and the remedy.
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


@pytest.mark.parametrize('name', FAULTS)
def test_planted_fault_is_among_the_first_two(tmp_path, name):
    changes, quantity, remedy = FAULTS[name]
    run = planted(tmp_path / 'run', changes)
    sign = first_sign(run)
    assert sign.quantity.name == quantity
    outcomes = sorted(treat(run, sign, steps=6, repeats=1), key=lambda one: -one.gain)
    assert remedy in [one.remedy for one in outcomes[:2]]
    assert outcomes[0].gain > 0.05
    start = last_good(run, sign)
    assert start is None or start.iteration < sign.iteration


def test_repeats_give_an_interval(tmp_path):
    changes, _, remedy = FAULTS['queue longer than the data']
    run = planted(tmp_path / 'run', changes)
    outcome = next(treat(run, first_sign(run), steps=4, repeats=2))
    assert outcome.remedy == remedy
    assert outcome.low <= outcome.gain <= outcome.high
    assert outcome.helps


def test_healthy_run_gets_no_remedy(tmp_path, capsys):
    run = tmp_path / 'run'
    (run / 'a/vis_data').mkdir(parents=True)
    lines = [f'{{"health_spread_key": 0.9, "step": {step}}}' for step in (1, 20)]
    (run / 'a/vis_data/scalars.json').write_text('\n'.join(lines))
    main([str(run)])
    assert 'no bad sign' in capsys.readouterr().out


def test_usual_settings_get_no_remedy_of_their_own(tmp_path):
    run = planted(tmp_path / 'run', {'train_cfg.max_epochs': 1, 'param_scheduler.0.end': 1})
    names = [name for name, _ in remedies(Fork(run).config())]
    assert names == [
        'shorten the queue',
        'lower the learning rate to a tenth',
        'clip gradients at norm 1',
        'use the usual views',
    ]
