"""Test fork rows, whose runs branch off from the runs of another row (the trunk), from the YAML file to the scores."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from harness.errors import raises_code
from study.small_runs import toy_scale

from mmairl.checkpoints.load import load_checkpoint
from mmairl.engine.run import register
from mmairl.study.collect import collect
from mmairl.study.commands import PreparedStudy, costs_of_rows, prepare_study, show_plan
from mmairl.study.runs import Run
from mmairl.study.slurm import in_order
from mmairl.study.worker import complete_run, transfer

AT = dict(of='trunk', at=0.5)
TEMPERATURE = {'model.head.temperature': 0.4}
ROWS = [
    dict(name='trunk', config='mocov2plus_complexaug_r50_200e.py'),
    dict(name='warm', fork=AT, options=TEMPERATURE),
    dict(name='late', fork=dict(of='trunk', at=0.7), options=TEMPERATURE, against='trunk'),
    dict(name='BYOL', fork=AT, config='byol_r50_200e.py', declares=['model.head', 'model.queue']),
]


def prepare(folder: Path, rows: list[dict], epochs: float = 0.02, **more: object) -> PreparedStudy:
    """Prepare a study of forks whose runs last 200 * `epochs` epochs."""
    folder.mkdir(exist_ok=True)
    scale = toy_scale(32, epochs=epochs, tasks=['knn'], floor=[])
    for name, content in (('toy', scale), ('study', dict(title='Forks', rows=rows, **more))):
        (folder / f'{name}.yaml').write_text(yaml.safe_dump(content))
    return prepare_study(folder / 'study.yaml', str(folder / 'toy.yaml'), out=folder / 'out')


@pytest.fixture(scope='module')
def finished(tmp_path_factory) -> tuple[PreparedStudy, dict[str, Run]]:
    """Return the study of forks, and a dictionary from each row's name to its finished run."""
    register()
    prepared = prepare(tmp_path_factory.mktemp('forks'), ROWS)
    runs = {run.row.name: run for run in prepared.laid_out_runs()}
    for run in runs.values():
        complete_run(run.folder)
    return prepared, runs


def test_fork_takes_config_and_base_from_its_trunk(finished):
    rows = {row.name: row for row in finished[0].study.rows}
    warm = rows['warm']
    assert (warm.config, warm.against) == (rows['trunk'].config, 'trunk')
    assert warm.declares == ('model.head.temperature',)


def test_branches_continue_their_trunk(finished):
    _, runs = finished
    trunk = runs['trunk'].result
    for name, epoch in (('warm', 2), ('late', 3), ('BYOL', 2)):
        result = runs[name].result
        meta = load_checkpoint(runs[name].folder / result.checkpoint)['meta']
        assert (meta['fork']['epoch'], meta['epoch']) == (epoch, 4)
        assert (result.start, result.steps) == (trunk.start, trunk.steps)
        assert result.scores and result.weights != trunk.weights
        assert runs[name].done


def test_trunk_keeps_checkpoints_at_fork_points(finished):
    folder = finished[1]['trunk'].folder
    assert {path.name for path in folder.glob('*.pth')} == {f'epoch_{number}.pth' for number in (2, 3, 4)}


def test_plan_counts_remaining_epochs_and_fork_points(finished, capsys):
    """The trunk keeps its last checkpoint and those after epochs 2 and 3, from which branches start."""
    costs = costs_of_rows(finished[0])
    assert [costs[row['name']].epochs for row in ROWS] == [4, 2, 1, 2]
    assert costs['warm'].hours == pytest.approx(costs['trunk'].hours / 2)
    assert costs['trunk'].gigabytes == pytest.approx(3 * costs['warm'].gigabytes)
    show_plan(finished[0], devices=1)
    assert capsys.readouterr().out.startswith('3 of 4 rows are forks')


def test_record_states_the_fork_point(finished):
    prepared, runs = finished
    record = collect(prepared.study, prepared.configs, prepared.scale, list(runs.values()), prepared.out)
    forks = [row['fork'] for row in record['rows']]
    assert forks[:2] == [None, dict(AT, epoch=2)]
    assert all(check['equal'] for check in record['fairness']['after'])


def test_scheduler_runs_trunks_before_branches(tmp_path):
    before = in_order(prepare(tmp_path, ROWS).laid_out_runs())
    assert [[other.row.name for other in needed] for needed in before.values()] == [[], *[['trunk']] * 3]
    assert {run.row.name: run.ready for run in before}['warm'] is False


def copied(finished: tuple, folder: Path, name: str) -> tuple[Run, Run]:
    """Copy the finished study, but remove one branch. Return the trunk and that branch, which has not started."""
    shutil.copytree(finished[0].out, folder / 'out')
    shutil.rmtree(folder / 'out' / 'runs' / name)
    runs = {run.row.name: run for run in replace(finished[0], out=folder / 'out').laid_out_runs()}
    return runs['trunk'], runs[name]


def test_branch_of_a_collapsed_trunk_is_excluded(finished, tmp_path, monkeypatch):
    trunk, branch = copied(finished, tmp_path, 'warm')
    monkeypatch.setattr('mmairl.study.worker.collapse_before', lambda *_: 'collapse of the features')
    complete_run(branch.folder)
    transfer(branch.folder, gpus=1)
    assert branch.done and not branch.result.scores
    prepared, _ = finished
    record = collect(prepared.study, prepared.configs, prepared.scale, [trunk, branch], tmp_path / 'out')
    run = record['rows'][1]['runs'][0]
    assert run['state'] == 'excluded' and 'epoch 2' in run['error']


def test_branch_without_the_checkpoint_is_an_error(finished, tmp_path):
    trunk, branch = copied(finished, tmp_path, 'warm')
    (trunk.folder / 'epoch_2.pth').unlink()
    with raises_code('no-fork-point'):
        complete_run(branch.folder)


def test_branch_of_another_trunk_is_an_error(finished, tmp_path):
    trunk, _ = copied(finished, tmp_path, 'warm')
    late = finished[1]['late']
    (trunk.folder / 'epoch_4.pth').replace(trunk.folder / 'epoch_3.pth')
    late = replace(late, folder=tmp_path / 'out' / late.folder.relative_to(finished[0].out))
    request = json.loads((late.folder / 'asked.json').read_text())
    assert request['fork']['trunk'] == str(trunk.folder.absolute())
    with raises_code('trunk-changed'):
        complete_run(late.folder)


def test_another_fork_point_is_another_run(finished, tmp_path):
    shutil.copytree(finished[0].out, tmp_path / 'out')
    rows = [ROWS[0], dict(ROWS[1], fork=dict(of='trunk', at=0.3)), *ROWS[2:]]
    with raises_code('other-config'):
        prepare(tmp_path, rows).laid_out_runs()


RATE = dict(key='optim_wrapper.optimizer.lr', times=[0.5, 2])
SEARCH = dict(budget=2, searches=1, criterion='knn', dimensions=dict(rate=RATE))


@pytest.mark.parametrize(
    ('code', 'change', 'more'),
    [
        ('unknown-row', dict(fork=dict(of='nobody')), {}),
        ('trunk-not-trained', dict(fork=dict(of='other')), {}),
        ('against-another-trunk', dict(against='whole'), {}),
        ('several-origins', dict(untrained='random'), {}),
        ('fork-and-search', {}, dict(search=SEARCH)),
        ('fork-changes-order', dict(options={'optim_wrapper.accumulative_counts': 2}), {}),
        ('fork-changes-shapes', dict(options={'model.predictor': None}), {}),
    ],
)
def test_impossible_fork_is_an_error(tmp_path, code, change, more):
    rows = [
        ROWS[0],
        dict(ROWS[1], name='other'),
        dict(name='whole', config='byol_r50_200e.py', declares=['model']),
        {**ROWS[1], **change},
    ]
    with raises_code(code):
        prepare(tmp_path, rows, **more)


def test_trunk_of_one_epoch_cannot_be_forked(tmp_path):
    with raises_code('trunk-without-epochs'):
        prepare(tmp_path, ROWS, epochs=0.005)
