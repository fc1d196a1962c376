"""Stale scores: after any field of a study, row or scale is edited, no outdated score is shown."""

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from harness.errors import raises_code
from study.small_runs import toy_scale

from mmairl.checkpoints.read import Backbone, read_backbone
from mmairl.checkpoints.write import write_backbone
from mmairl.config import load_config
from mmairl.engine.run import register
from mmairl.evaluation.backbone import load_backbone
from mmairl.io import write_json
from mmairl.study import scale as scales
from mmairl.study import worker
from mmairl.study.commands import seeds_at
from mmairl.study.fairness import at_scale
from mmairl.study.planner import plan_runs, prepare_runs
from mmairl.study.runs import Run
from mmairl.study.scale import Scale, read_scale
from mmairl.study.schema import Asked, RunResult, Trained
from mmairl.study.spec import Row, Study, read_study
from mmairl.study.stale import stale_reason

CONFIG = 'mocov2plus_r50_200e.py'
STUDY = dict(
    title='t',
    seeds=[0],
    rows=[
        dict(name='base', config=CONFIG),
        dict(name='half', config=CONFIG, along=dict(of='base', part='1/2')),
        dict(name='small', config=CONFIG, rescaled=dict(of='base', constant=0.1)),
        dict(name='again', config=CONFIG, rescaled=dict(of='small', anchor='half')),
        dict(name='null', config='byol_r50_200e.py', untrained='random'),
    ],
)
SCALE = toy_scale(64, epochs=0.015, tasks=['knn'], floor=[])
RATE = dict(key='optim_wrapper.optimizer.lr', times=['1/8', 8])
# Each field has an edited value. For fields of rows, the first entry is the name of the row.
STUDY_EDITS = dict(
    title='another', seeds=[1], tasks={'toy': ['logreg']}, question='why?', paper=dict(where='Tab. 1'),
    figure=dict(kind='lines'), reading={'toy': 'so'}, measured={}, look=[dict(instrument='norms', rows=['base'])],
    primary={'toy': 'knn'}, equivalence=2, analyses=['projects.normrescale.benefit'],
    rows=[STUDY['rows'][1], dict(name='base', config='byol_r50_200e.py')],
    cross=dict(config=CONFIG, factors=[dict(name='a', declares=['model'], levels={'x': {}, 'y': {'model.symmetric': False}})]),
    search=dict(budget=2, dimensions=dict(rate=RATE)), name='other',
    tune=dict(linear=dict(trials=2, dimensions=dict(rate=RATE))), unscaled=['model.head'],
)  # fmt: skip
ROW_EDITS = dict(
    name=('null', 'nothing'), config=('base', 'mocov2_r50_200e.py'), options=('base', {'model.head.temperature': 0.3}),
    against=('half', 'small'), factor=('half', 'less'), declares=('half', ['model']), published=('base', 'mocov2plus_sgd'),
    group=('base', 'g'), x=('base', 3), rescaled=('small', dict(of='base', constant=5)),
    along=('half', dict(of='base', part='1/1')), untrained=('null', 'pixels'), search=('base', dict(rate=RATE)),
)  # fmt: skip
SCALE_EDITS = dict(
    text='other', step_seconds=dict(voc07=1),
    rate=9, rate_source='other', images=63, merge={**SCALE['merge'], 'model.head.temperature': 0.3},
    replace={**SCALE['replace'], 'total_batch_size': 8}, data={**SCALE['data'], 'count': 63}, views={}, views_on_device=False,
    parts={}, without=['auto_scale_lr'], rate_of='byol_r50_200e.py', widths=dict(features=64, hidden=16, out=16),
    queue=32, batch=8, epochs=0.02, warm_up=2, teacher=5,
    lr=dict(SGD=1),    tasks=['logreg'], seeds=[3, 4], floor=['pixels'], name='other',
)  # fmt: skip
# Edits of these fields make no score stale. Each key states what the fields affect instead.
SAME = {
    'words on the page': {'title', 'question', 'paper', 'reading', 'factor', 'text'},
    'the page': {'analyses', 'figure', 'published', 'group', 'x', 'measured'},
    'verdicts and fairness, which are computed from the scores': {'equivalence', 'primary', 'against', 'declares', 'unscaled'},
    'the plan': {'rate', 'rate_source', 'rate_of', 'step_seconds', 'images'},
    'another page': {'look'},
    'other rows': {'floor'},
    'the folder, which the test sets': {'name of study', 'name of scale'},
    'a task that the study does not have': {'tune'},
}  # fmt: skip


@pytest.fixture(scope='module')
def planned(tmp_path_factory) -> Callable[[dict, dict], list[Run]]:
    """Return a function that plans a study in a folder where the runs of STUDY are finished.

    Checkpoints are written by `leave_weights` instead of being trained.
    """
    folder, read_config = tmp_path_factory.mktemp('stale'), cache(load_config)
    register()

    def plan(study: dict = STUDY, scale: dict = SCALE, act: Callable[..., list[Run]] = plan_runs) -> list[Run]:
        for name, content in (('toy', scale), ('study', study)):
            (folder / f'{name}.yaml').write_text(yaml.safe_dump(content))
        read_again, size = read_study(folder / 'study.yaml'), read_scale(str(folder / 'toy.yaml'))
        tasks = read_again.tasks.get(size.name) or size.tasks
        scaled, configs, _ = at_scale(read_again, size, tasks)
        return act(scaled, configs, seeds_at(size, scaled), tasks, folder / 'out')

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scales, 'load_config', lambda path: copy.deepcopy(read_config(path)))
        base, *others = plan(act=prepare_runs)
        leave_weights(base.folder, seed=0)
        for run in (base, *others):
            worker.complete_run(run.folder)
        assert all(run.done for run in plan())
        yield plan


def leave_weights(folder: Path, seed: int) -> None:
    """Write the checkpoints of a finished run: one from the middle of the run, and the last one."""
    network = load_backbone(load_config(str(folder / 'asked/config.yaml')), seed=seed)
    for step, grown in ((8, 1.0), (4, 0.5)):
        weights = {name: value * grown for name, value in network.state_dict().items()}
        write_backbone(Backbone(weights, 'torchvision', 'x', ''), folder / f'iter_{step}.pth', 'mmairl')
    (folder / 'last_checkpoint').write_text('iter_8.pth')
    write_json(folder / 'trained.json', Trained(seconds=1.0, device_seconds=1.0, steps=8, images_seen=64))


def edits():
    for field, value in STUDY_EDITS.items():
        changes = dict(cross=dict(rows=[]), primary=dict(tasks={'toy': ['knn']})).get(field, {})
        yield f'{field} of study', {**STUDY, **changes, field: value}, SCALE
    for field, (name, value) in ROW_EDITS.items():
        rows = [{**row, field: value} if row['name'] == name else row for row in STUDY['rows']]
        search = dict(search=dict(budget=2, dimensions=dict(t=dict(RATE, key='model.head.temperature'))))
        yield f'{field} of row', {**STUDY, 'rows': rows, **(search if field == 'search' else {})}, SCALE
    for field, value in SCALE_EDITS.items():
        yield f'{field} of scale', STUDY, {**SCALE, field: value}


def test_each_field_is_edited():
    # Other files, such as test_external.py, test these fields.
    elsewhere = {'weights', 'trained', 'claims', 'fork'}
    for kind, edited in ((Study, STUDY_EDITS), (Row, ROW_EDITS), (Scale, SCALE_EDITS)):
        assert edited.keys() == set(kind.__struct_fields__) - elsewhere


@pytest.mark.parametrize('edit', edits(), ids=lambda edit: edit[0])
def test_edit_makes_a_score_stale_or_is_harmless(planned, edit):
    field, study, scale = edit
    before = {run.folder: run.tasks for run in planned()}
    runs = {run.folder: run for run in planned(study, scale)}
    same = all(folder in runs and runs[folder].done and runs[folder].tasks == tasks for folder, tasks in before.items())
    assert same == any({field, field.partition(' of ')[0]} & fields for fields in SAME.values())


def test_replaced_weights_make_dependent_rows_stale(planned):
    base, *others = planned()
    leave_weights(base.folder, seed=1)
    assert [run.done for run in planned()] == [False, False, False, False, True]
    assert base.stale_reason == 'checkpoint' and 'of (' in others[0].stale_reason
    before = read_backbone(str(others[2].folder / 'derived.pth')).weights
    for run in (base, *others):
        worker.complete_run(run.folder)
    assert all(run.done for run in planned())
    after = read_backbone(str(others[2].folder / 'derived.pth')).weights
    assert not torch.equal(before['conv1.weight'], after['conv1.weight'])
    (base.folder / 'iter_8.pth').rename(base.folder / 'gone')
    assert all(run.done for run in planned()), 'a run is stale because its weights were removed'
    (base.folder / 'iter_8.pth').write_bytes(b'damaged')
    assert 'unknown: ' in others[1].stale_reason and not base.done
    (base.folder / 'gone').rename(base.folder / 'iter_8.pth')


def test_untrained_row_cannot_become_a_trained_one(planned):
    changed = {**STUDY, 'rows': [{**row, 'untrained': None} for row in STUDY['rows']]}
    assert [run.stale_reason for run in planned(changed)] == [''] * 4 + ['the config']
    with raises_code('other-config'):
        planned(changed, act=prepare_runs)


def test_other_trials_make_a_transfer_score_stale(tmp_path):
    tried = ({}, {'optim_wrapper.optimizer.lr': 0.1})
    result = RunResult(labels={'scenes_det': 'AP'}, tuned={'scenes_det': dict(trials=list(tried))})
    same, fewer = (Asked(0, ('scenes_det',), untrained='random', tuned={'scenes_det': to}) for to in (tried, tried[:1]))
    assert stale_reason(tmp_path, result, same) == ''
    assert stale_reason(tmp_path, result, fewer) == 'scenes_det: its trials'
