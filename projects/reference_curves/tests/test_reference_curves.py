"""Test that points of the curves of finished runs are stored, and that they replace stored curves of the same scale."""

import json
from itertools import pairwise

import pytest

from mmairl.errors import UserError
from projects.reference_curves.__main__ import POINTS, store


def write_study(folder, states):
    rows = []
    for number, state in enumerate(states):
        (folder / f'runs/{number}/1/vis_data').mkdir(parents=True)
        lines = []
        for step in range(1, 202):
            values = dict(step=step, loss=number + 1 / step, health_spread_key=0.5, lr=0.1)
            lines.append(json.dumps(values))
        (folder / f'runs/{number}/1/vis_data/scalars.json').write_text('\n'.join(lines))
        run = dict(state=state, folder=f'runs/{number}', scores=dict(knn=40.0))
        rows.append(dict(name=f'row {number}', runs=[run]))
    record = dict(rows=rows, scale=dict(name='small', text='a small one'))
    (folder / 'study.json').write_text(json.dumps(record))


def test_stored_curves_replace_those_of_the_scale(tmp_path):
    write_study(tmp_path, ['done', 'running', 'done'])
    out = tmp_path / 'reference.json'
    out.write_text(json.dumps(dict(small='older', other='kept')))
    store(tmp_path, out)
    scales = json.loads(out.read_text())
    assert scales['other'] == 'kept'
    assert scales['small']['text'] == 'a small one'
    assert scales['small']['rows'].keys() == {'row 0', 'row 2'}
    curves = scales['small']['rows']['row 2']['curves']
    assert curves.keys() == {'loss', 'health_spread_key'}
    steps, losses = curves['loss']
    assert (steps[0], steps[-1], len(steps)) == (1, 201, POINTS)
    assert {after - before for before, after in pairwise(steps)} <= {3, 4}
    assert losses == pytest.approx([2 + 1 / step for step in steps], rel=1e-3)


def test_study_without_finished_runs_raises(tmp_path):
    write_study(tmp_path, ['running'])
    with pytest.raises(UserError) as error:
        store(tmp_path, tmp_path / 'reference.json')
    assert error.value.code == 'no-finished-run'
