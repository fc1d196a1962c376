"""A branch restores the exact state of a checkpoint of another run (its trunk), and continues with changed options."""

import json
from pathlib import Path

import pytest
import torch
from harness import resume as resuming
from harness.errors import raises_code

from mmairl.cli.train import main
from mmairl.engine import run
from mmairl.engine.checkpoint import load_checkpoint
from mmairl.engine.fork import Fork, collapse_before, fit_to_branch
from mmairl.models.queue import KeyQueue

# Each epoch has four steps and ends with a checkpoint.
SHAPE = dict(epochs=3, steps=4, every=4)


@pytest.fixture(scope='module')
def trunk(tmp_path_factory) -> Path:
    """Return the work dir of a complete run of three epochs."""
    folder = tmp_path_factory.mktemp('trunk') / 'run'
    resuming.run(resuming.config('shuffle_bn', str(folder), **SHAPE))
    return folder


def branch(trunk: Path, folder: Path, epoch: int = 1, **options: object) -> Path:
    """Train a branch, and return its last checkpoint."""
    fork = Fork(trunk, epoch)
    cfg = fork.config(options)
    cfg.work_dir = str(folder)
    run.train(cfg, fork=fork)
    return Path((folder / 'last_checkpoint').read_text())


def test_branch_without_a_change_equals_its_trunk(trunk, tmp_path):
    resuming.assert_the_same_run(trunk / 'iter_12.pth', branch(trunk, tmp_path / 'run', 2))


def test_branch_records_its_origin(trunk, tmp_path):
    options = ['--cfg-options', 'model.head.temperature=0.4']
    main(['--fork', f'{trunk}@2', '--work-dir', str(tmp_path / 'a'), *options])
    meta = load_checkpoint(tmp_path / 'a' / 'iter_12.pth')['meta']
    parent = load_checkpoint(trunk / 'iter_12.pth')['meta']
    assert meta['fork'] == dict(run=parent['run'], epoch=2, iter=8, changes={'model.head.temperature': '0.4'})
    assert meta['run'] != parent['run']


def test_interrupted_branch_resumes_exactly(trunk, tmp_path):
    change = {'model.head.temperature': 0.4}
    whole = branch(trunk, tmp_path / 'whole', 2, **change)
    fork = Fork(trunk, 2)
    cfg = fork.config(change)
    cfg.work_dir = str(tmp_path / 'left')
    cfg.default_hooks.leave = dict(type='LeaveAt', iteration=10)
    with pytest.raises(resuming.LeftInTheMiddle):
        run.train(cfg, fork=fork)
    interrupted = branch(trunk, tmp_path / 'left', 2, **change)
    resuming.assert_the_same_run(whole, interrupted)


@pytest.mark.parametrize(
    'change',
    [
        {
            'optim_wrapper.optimizer.lr': 0.002,
            'optim_wrapper.dtype': 'bfloat16',
            'model.queue.length': 40,
        },
        pytest.param(
            {
                'model.backbone.norm_cfg': dict(type='BN', _delete_=True),
                'train_dataloader.dataset.views.0.0.scale': (0.9, 1.0),
            },
            marks=pytest.mark.slow,
        ),
        {'optim_wrapper.optimizer': dict(type='LARS', lr=0.1, _delete_=True)},
    ],
    ids=['numbers', 'norm and views', 'optimizer'],
)
def test_allowed_change_differs_after_the_fork_point(trunk, tmp_path, change):
    last = load_checkpoint(branch(trunk, tmp_path / 'run', 2, **change))
    whole = load_checkpoint(trunk / 'iter_12.pth')
    key = 'backbone.conv1.weight'
    moved = (whole['state_dict'][key] - load_checkpoint(trunk / 'iter_8.pth')['state_dict'][key]).norm()
    difference = (last['state_dict'][key] - whole['state_dict'][key]).norm()
    assert difference > 0
    assert difference < 50 * moved
    assert last['meta']['iter'] == 12


@pytest.mark.parametrize(
    'change, code',
    [
        ({'train_dataloader.dataset.count': 40}, 'fork-changes-order'),
        ({'randomness.seed': 4}, 'fork-changes-order'),
        ({'model.projector.out_channels': 8}, 'fork-changes-shapes'),
        ({'model.target': 'stop_gradient'}, 'fork-changes-shapes'),
    ],
    ids=str,
)
def test_change_of_order_or_shapes_names_its_key(trunk, tmp_path, change, code):
    with raises_code(code, match=next(iter(change))):
        branch(trunk, tmp_path / 'run', **change)


def test_missing_fork_point_lists_available_epochs(trunk, tmp_path):
    with raises_code('no-fork-point', match='1, 2, 3'):
        branch(trunk, tmp_path / 'run', 4)


def test_trunk_of_other_code_raises(trunk, tmp_path):
    for name in ('run_id', 'iter_4.pth'):
        (tmp_path / name).write_bytes((trunk / name).read_bytes())
    for file in trunk.glob('*/vis_data/*'):
        target = tmp_path / file.relative_to(trunk)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    checkpoint = load_checkpoint(tmp_path / 'iter_4.pth')
    checkpoint['meta']['mmairl_version'] = '0.0.9'
    torch.save(checkpoint, tmp_path / 'iter_4.pth')
    with raises_code('other-code', match='0.0.9'):
        branch(tmp_path, tmp_path / 'run')
    del checkpoint['random_states']
    torch.save(checkpoint, tmp_path / 'iter_4.pth')
    with raises_code('not-a-training-checkpoint', match='random_states'):
        branch(tmp_path, tmp_path / 'run')


def test_folder_of_the_trunk_or_another_branch_raises(trunk, tmp_path):
    with raises_code('fork-in-trunk'):
        branch(trunk, trunk)
    branch(trunk, tmp_path / 'run', 2)
    with raises_code('other-fork'):
        branch(trunk, tmp_path / 'run', 1)


@pytest.mark.parametrize('text', ['run', 'run@', 'run@0', 'run@-1', 'run@2.5', '@3'])
def test_malformed_fork_raises(text):
    with raises_code('bad-fork'):
        Fork.parse(text)


def test_fork_point_may_contain_an_at_sign():
    assert Fork.parse('work@dirs/a@12') == Fork(Path('work@dirs/a'), 12)


@pytest.mark.parametrize('length', [3, 6, 9])
@pytest.mark.parametrize('steps', [1, 2, 4])
def test_queue_keeps_its_newest_keys(length, steps):
    """Each step adds two keys to a queue of six."""
    trunk = KeyQueue(6, 1, 'empty')
    for step in range(steps):
        trunk.enqueue(torch.tensor([[2.0 * step], [2.0 * step + 1]]))
    model = torch.nn.Module()
    model.queue = KeyQueue(length, 1, 'empty')
    weights = {f'queue.{key}': value for key, value in trunk.state_dict().items()}
    fit_to_branch(dict(state_dict=weights), model)
    model.queue.load_state_dict({key.removeprefix('queue.'): weights[key] for key in weights})
    count = min(length, 6, 2 * steps)
    newest = list(range(2 * steps))[-count:]
    assert sorted(model.queue.negatives().flatten().tolist()) == newest
    model.queue.enqueue(torch.tensor([[99.0]]))
    interrupted = newest if count < length else newest[1:]
    assert sorted(model.queue.negatives().flatten().tolist()) == [*interrupted, 99]


def test_collapse_is_reported_up_to_the_fork_point(tmp_path):
    folder = tmp_path / 'a/vis_data'
    folder.mkdir(parents=True)
    values = (0.9, 0.01, float('nan'))
    lines = [json.dumps(dict(health_spread_key=value, step=step)) for step, value in enumerate(values)]
    (folder / 'scalars.json').write_text('\n'.join(lines))
    assert collapse_before(tmp_path, 0) == ''
    assert collapse_before(tmp_path, 1).startswith('collapse')
    assert collapse_before(tmp_path, 2).startswith('the run has diverged')


@pytest.mark.parametrize('flags', [[], ['--work-dir', 'a', '--resume'], ['--work-dir', 'a', 'c.py']])
def test_command_requires_a_folder_and_no_config(flags):
    with pytest.raises(SystemExit) as stop:
        main(['--fork', 'run@2', *flags])
    assert stop.value.code == 2
