"""A stretch of a run (between two checkpoints) is repeated.

The result must equal the second checkpoint, and any tampering must be detected.
"""

import shutil
import signal
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from harness import resume as resuming
from harness import toy
from harness.errors import raises_code

from mmairl.cli.replay import check_evaluations, main
from mmairl.engine import replay
from mmairl.engine.checkpoint import consolidate, load_checkpoint
from mmairl.engine.fork import Fork, checkpoints_of_run
from mmairl.engine.replay import Stretch, check_stretch, differences_of, stretches_of
from mmairl.engine.replay_step import replay_step
from mmairl.evaluation.protocol import evaluate
from mmairl.io import write_json
from mmairl.signals import Stopped


@pytest.fixture(scope='module')
def run_dir(tmp_path_factory) -> Path:
    """Return the work dir of a run of three epochs of four iterations, with a checkpoint after each epoch."""
    folder = tmp_path_factory.mktemp('kept') / 'run'
    cfg = resuming.config('shuffle_bn', str(folder), epochs=3, steps=4, every=4)
    cfg.evaluation = {part: toy.KNN[part] for part in ('train', 'test')}
    resuming.run(cfg)
    return folder


def test_whole_run_is_reproduced(run_dir):
    before = sorted(run_dir.rglob('*'))
    verdicts = [check_stretch(run_dir, stretch) for stretch in stretches_of(run_dir)]
    assert [verdict.status for verdict in verdicts] == ['reproduced'] * 3
    assert [verdict.what for verdict in verdicts] == [
        'iterations 1 to 4',
        'iterations 5 to 8',
        'iterations 9 to 12',
    ]
    assert sorted(run_dir.rglob('*')) == before


@pytest.mark.slow
@pytest.mark.parametrize('case', ['lars_accumulated', 'workers', 'views_of_the_batch'])
def test_other_recipes_are_reproduced(tmp_path, case):
    """Depending on the case, the run accumulates batches, has data workers (a replay has none), or creates views on the
    device. Its checkpoints are in a separate folder.
    """
    run = tmp_path / 'run'
    cfg = resuming.config(case, str(run), epochs=2, steps=2, every=2)
    cfg.default_hooks.checkpoint.out_dir = str(tmp_path / 'elsewhere')
    last = resuming.run(cfg)
    saved = sorted(last.parent.iterdir())
    verdicts = [check_stretch(run, stretch) for stretch in stretches_of(run)]
    assert {verdict.status for verdict in verdicts} == {'reproduced'}, verdicts
    assert sorted(last.parent.iterdir()) == saved
    assert list(last.parent.parent.iterdir()) == [last.parent]
    logged = load_checkpoint(last)['message_hub']['log_scalars']['train/loss'].data[0]
    assert replay_step(run, 4)[0].values['loss'] == logged[3]


def edit_checkpoint(folder: Path, change: Callable[[dict], object]) -> Path:
    """Change the checkpoint of iteration 8, and return its path."""
    path = folder / 'iter_8.pth'
    checkpoint = load_checkpoint(path)
    change(checkpoint)
    torch.save(checkpoint, path)
    return path


def flip_a_bit(checkpoint: dict) -> None:
    checkpoint['state_dict']['backbone.conv1.weight'].view(torch.int32).view(-1)[0] ^= 1


def copy_student(checkpoint: dict) -> None:
    weights = checkpoint['state_dict']
    weights['teacher.backbone.conv1.weight'] = weights['backbone.conv1.weight'].clone()


def roll_queue(checkpoint: dict) -> None:
    vectors = checkpoint['state_dict']['queue.vectors']
    vectors.copy_(vectors.roll(1, 0))


# Each key is the only difference that `differences_of` may report after the change of the
# checkpoint.
TAMPERING = {
    'state_dict.backbone.conv1.weight': flip_a_bit,
    'state_dict.teacher.backbone.conv1.weight': copy_student,
    'state_dict.backbone.bn1.running_mean': lambda one: one['state_dict']['backbone.bn1.running_mean'].add_(1e-6),
    'state_dict.queue.vectors': roll_queue,
    'optimizer.state.0.momentum_buffer': lambda one: one['optimizer']['state'][0]['momentum_buffer'].zero_(),
    'optimizer.param_groups.0.lr': lambda one: one['optimizer']['param_groups'][0].update(lr=0.5),
    'param_schedulers.0.last_step': lambda one: one['param_schedulers'][0].update(last_step=7),
    'random_states.0.torch': lambda one: one['random_states'][0]['torch'].view(-1)[9].add_(1),
    'place.seed': lambda one: one['place'].update(seed=5),
    'meta.epoch': lambda one: one['meta'].update(epoch=2),
    'random_states': lambda one: one.pop('random_states'),
    'state_dict.backbone.bn1.weight': lambda one: one['state_dict']['backbone.bn1.weight'].fill_(float('nan')),
}


@pytest.mark.parametrize('place', TAMPERING)
def test_tampering_differs_in_its_place(run_dir, tmp_path, place):
    shutil.copy(run_dir / 'iter_8.pth', tmp_path)
    edited = edit_checkpoint(tmp_path, TAMPERING[place])
    assert differences_of(edited, run_dir / 'iter_8.pth') == [place]


@pytest.fixture
def copied(run_dir, tmp_path) -> Path:
    shutil.copytree(run_dir, tmp_path / 'run')
    return tmp_path / 'run'


def status_of(folder: Path) -> str:
    early, late = checkpoints_of_run(folder)[:2]
    return check_stretch(folder, Stretch(early, late)).status


def test_tampering_is_found_in_its_stretch(copied):
    edit_checkpoint(copied, flip_a_bit)
    assert status_of(copied) == 'mismatch'


def edit_config(folder: Path, before: str, after: str) -> None:
    file = next(folder.glob('*/vis_data/config.py'))
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def average_weights(folder: Path) -> None:
    early = load_checkpoint(folder / 'iter_4.pth')['state_dict']

    def average(checkpoint: dict) -> None:
        for key, value in checkpoint['state_dict'].items():
            if value.is_floating_point():
                value.add_(early[key]).div_(2)

    edit_checkpoint(folder, average)


def take_earlier_weights(folder: Path) -> None:
    early = load_checkpoint(folder / 'iter_4.pth')['state_dict']
    edit_checkpoint(folder, lambda one: one.update(state_dict=early))


EDITS = {
    'averaged weights': average_weights,
    'earlier weights': take_earlier_weights,
    'order': lambda folder: edit_checkpoint(folder, lambda one: one['place'].update(order_by_sum=True)),
    'seed': lambda folder: edit_checkpoint(folder, lambda one: one['meta'].update(seed=5)),
    'data': lambda folder: edit_config(folder, "type='Shapes'", "noise=0.3, type='Shapes'"),
    'number of images': lambda folder: edit_config(folder, 'count=35', 'count=34'),
    'temperature': lambda folder: edit_config(folder, 'temperature=0.2', 'temperature=0.3'),
    'views': lambda folder: edit_config(folder, "type='RandomFlip'", "p=0.1, type='RandomFlip'"),
}


@pytest.mark.parametrize(
    'kind', [pytest.param(kind, marks=[] if kind == 'temperature' else pytest.mark.slow) for kind in EDITS]
)
def test_edit_of_a_run_is_a_mismatch(copied, kind):
    EDITS[kind](copied)
    assert status_of(copied) == 'mismatch'


def test_other_machine_is_not_comparable(run_dir, monkeypatch):
    machine = replay.describe_machine()
    monkeypatch.setattr(replay, 'describe_machine', lambda: {**machine, 'torch': '9.9'})
    monkeypatch.setattr(replay, 'rerun', lambda *_: None)
    monkeypatch.setattr(replay, 'differences_of', lambda *_: ['state_dict.weight'])
    early, late = checkpoints_of_run(run_dir)[:2]
    verdict = check_stretch(run_dir, Stretch(early, late))
    assert verdict.status == 'not comparable'
    assert '9.9' in verdict.reason


@pytest.mark.parametrize('number', [0, 1])
def test_other_version_is_not_comparable(run_dir, monkeypatch, number):
    monkeypatch.setattr('mmairl.__version__', '9.9')
    verdict = check_stretch(run_dir, stretches_of(run_dir)[number])
    assert verdict.status == 'not comparable'
    assert '9.9' in verdict.reason


def test_run_without_a_config_is_not_comparable(copied):
    stretch = stretches_of(copied)[0]
    shutil.rmtree(next(copied.glob('*/vis_data')))
    assert check_stretch(copied, stretch).status == replay.NOT_COMPARABLE


def test_stretch_spans_a_missing_checkpoint(copied):
    (copied / 'iter_4.pth').unlink()
    assert [str(stretch) for stretch in stretches_of(copied)] == ['iterations 1 to 8', 'iterations 9 to 12']


def test_no_stretch_ends_at_a_checkpoint_after_a_signal(tmp_path):
    folder = tmp_path / 'run'
    cfg = resuming.config('shuffle_bn', str(folder), epochs=1, steps=4, every=4)
    cfg.custom_hooks.append(dict(type='SignalAt', iteration=2, number=signal.SIGTERM))
    with pytest.raises(Stopped):
        resuming.run(cfg)
    assert stretches_of(folder) == []
    with raises_code('no-stretch'):
        main([str(folder), '--check', '1'])
    resuming.run(resuming.config('shuffle_bn', str(folder), resume=True, epochs=1, steps=4, every=4))
    assert len(checkpoints_of_run(folder)) == 2
    assert [str(stretch) for stretch in stretches_of(folder)] == ['iterations 3 to 4']


def test_consolidated_file_is_no_run_checkpoint(copied):
    consolidate(copied / 'iter_8.pth', copied / 'weights.pth')
    assert [stored.path.name for stored in checkpoints_of_run(copied)] == ['iter_4.pth', 'iter_8.pth', 'iter_12.pth']


def test_folder_without_checkpoints_raises(run_dir, tmp_path):
    with raises_code('no-checkpoint'):
        checkpoints_of_run(tmp_path)


def test_command_states_its_cost_and_verdicts(run_dir, capsys):
    main([str(run_dir), '--check', '1'])
    output = capsys.readouterr().out
    assert 'replaying 4 of 12 iterations' in output
    assert 'reproduced' in output
    assert '33 %' in output


def test_command_fails_after_a_mismatch(copied):
    edit_config(copied, 'temperature=0.2', 'temperature=0.3')
    with raises_code('not-reproduced'):
        main([str(copied), '--check', '3'])


def test_evaluation_is_repeated(copied):
    result = evaluate(Fork(copied).config(), 'knn', copied / 'iter_12.pth')
    record = dict(protocol='knn', config='a.py', checkpoint='elsewhere/iter_12.pth', **asdict(result))
    edited = {name: score + 0.1 for name, score in result.scores.items()}
    for changes, status in (
        ({}, 'reproduced'),
        (dict(scores=edited), 'mismatch'),
        (dict(identity={**result.identity, 'weights': 'others'}), 'not comparable'),
    ):
        write_json(copied / 'iter_12_student_knn.json', {**record, **changes})
        assert [verdict.status for verdict in check_evaluations(copied)] == [status]


def test_step_is_the_one_of_training(run_dir):
    """The step may be the first of the run, or several iterations after a checkpoint."""
    scalars = load_checkpoint(run_dir / 'iter_12.pth')['message_hub']['log_scalars']
    losses = scalars['train/loss'].data[0]
    for step in (1, 8):
        record = replay_step(run_dir, step)[0]
        assert record.values['loss'] == losses[step - 1]
        assert record.losses.mean().item() == pytest.approx(record.values['loss'], rel=1e-5)
        assert len(record.items) == len(record.gradients) == len(record.nearest) == 8


def test_step_under_another_key_shares_its_start(run_dir):
    plain, changed = replay_step(run_dir, 6, {'model.head.temperature': 0.5})
    assert plain.items == changed.items
    assert all(torch.equal(*pair) for pair in zip(plain.views, changed.views))
    assert plain.values['loss'] != changed.values['loss']


def test_gradients_do_not_depend_on_accumulation(run_dir):
    """With twice the batch in two accumulated parts, the first iteration trains on the same images."""
    plain, accumulated = replay_step(run_dir, 1, {'total_batch_size': 16, 'optim_wrapper.accumulative_counts': 2})
    assert plain.items == accumulated.items
    torch.testing.assert_close(plain.gradients, accumulated.gradients)


@pytest.mark.parametrize('step', [0, 13])
def test_step_beyond_the_run_raises(run_dir, step):
    with raises_code('no-such-step', match='1 to 12'):
        replay_step(run_dir, step)


def test_command_writes_a_page_about_a_step(run_dir, tmp_path, capsys):
    page = tmp_path / 'step.html'
    flags = ['--views', '--per-image', '--cfg-options', 'model.head.temperature=0.5']
    main([str(run_dir), '--step', '7', '--out', str(page), *flags])
    assert 'replaying 4 iterations from iteration 4' in capsys.readouterr().out
    text = page.read_text()
    for heading in ('Iteration 7', 'Values', 'Images', 'Views', 'Sampled parameters'):
        assert heading in text
    assert 'model.head.temperature=0.5' in text
    assert text.count('<img') == 16
