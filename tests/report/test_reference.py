"""The reference curves: taken from a study's runs as they are, and what the file says of healthy and collapsed ones."""

import json
from itertools import pairwise

import pytest
from test_health_page import write_scalars

from mmairl.config import home
from mmairl.errors import UserError
from mmairl.report.reference import LABELS, POINTS, STORED, store
from mmairl.study.scale import read_scale
from mmairl.study.spec import read_study


def write_study(folder, states):
    rows = []
    for number, state in enumerate(states):
        steps = [dict(step=step, loss=number + 1 / step, health_spread_key=0.5, lr=0.1) for step in range(1, 202)]
        write_scalars(folder / f'runs/{number}', *steps)
        rows.append(
            dict(name=f'row {number}', runs=[dict(state=state, folder=f'runs/{number}', scores=dict(knn=40.0))])
        )
    (folder / 'study.json').write_text(json.dumps(dict(rows=rows, scale=dict(name='small', text='a small one'))))


def test_stored_curves_replace_those_of_the_scale(tmp_path):
    write_study(tmp_path, ['done', 'running', 'done'])
    out = tmp_path / 'reference.json'
    out.write_text(json.dumps(dict(small='older', other='kept')))
    store(tmp_path, out)
    found = json.loads(out.read_text())
    assert found['other'] == 'kept' and found['small']['text'] == 'a small one'
    assert found['small']['rows'].keys() == {'row 0', 'row 2'}
    curves = found['small']['rows']['row 2']['curves']
    assert curves.keys() == {'loss', 'health_spread_key'}
    steps, losses = curves['loss']
    assert steps[0] == 1 and steps[-1] == 201 and len(steps) == POINTS
    assert {after - before for before, after in pairwise(steps)} <= {3, 4}
    assert losses == pytest.approx([2 + 1 / step for step in steps], rel=1e-3)
    write_study(tmp_path / 'unfinished', ['running'])
    with pytest.raises(UserError) as error:
        store(tmp_path / 'unfinished', out)
    assert error.value.code == 'no-finished-run'


def test_stored_references_show_a_collapse():
    rows = {row.name for row in read_study(home() / 'configs/studies/reference_curves.yaml').rows}
    for scale, kept in json.loads(STORED.read_text()).items():
        assert read_scale(scale) and kept['text'], 'the text is of the scale as the references were measured'
        runs = kept['rows'].values()
        assert kept['rows'].keys() <= rows and all(run['curves'].keys() <= LABELS.keys() for run in runs)
        ends = {row: run['curves']['health_spread_key'][1][-1] for row, run in kept['rows'].items()}
        knn = {row: run['knn'] for row, run in kept['rows'].items()}
        assert all(0 < run['knn'] < 100 and set(run['curves']) >= {'loss', 'health_spread_key'} for run in runs)
        if (collapsed := ends.pop('BYOL, collapsed', None)) is not None:
            assert collapsed < 0.1 < min(ends.values())
            assert knn.pop('BYOL, collapsed') < min(knn.values())
