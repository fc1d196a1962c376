"""The schema of studies: defaults, designs and the errors of wrong YAML files."""

import pytest
import yaml
from harness.errors import raises_code

from mmairl.study.study import LONGEST_SLUG, read_study
from mmairl.study.tasks import metric_of

ROW = dict(name='a', config='mocov2plus_r50_200e.py')
OTHER = dict(ROW, name='b')
FACTOR = dict(name='f', levels={'off': {}, 'on': {'x': 1}}, declares=['x'])


def read(tmp_path, **study):
    path = tmp_path / 'one.yaml'
    path.write_text(yaml.safe_dump(dict(title='title', **study)))
    return read_study(path)


def test_rows_are_compared_with_the_row_above(tmp_path):
    rows = [
        ROW,
        dict(OTHER, name='floor', untrained='random'),
        OTHER,
        dict(ROW, name='c', against='a'),
    ]
    study = read(tmp_path, rows=rows)
    assert [row.against for row in study.rows] == [None, None, 'a', 'a']
    assert study.name == 'one'


def test_row_can_use_a_config_next_to_the_study(tmp_path):
    (tmp_path / 'own.py').write_text('x = 1\n')
    study = read(tmp_path, rows=[dict(ROW, config='own.py')])
    assert study.rows[0].config == str(tmp_path / 'own.py')


def test_design_has_a_row_for_each_combination(tmp_path):
    cross = dict(
        config='c.py',
        factors=[
            FACTOR,
            dict(FACTOR, name='g', levels={'no': {}, 'yes': {'y': 2}}),
        ],
    )
    study = read(tmp_path, cross=cross)
    assert [row.name for row in study.rows] == [
        'off, no',
        'off, yes',
        'on, no',
        'on, yes',
    ]
    assert study.rows[3].options == {'x': 1, 'y': 2}
    assert [row.against for row in study.rows] == [None] + ['off, no'] * 3
    assert study.cross.design.rows['on, no'] == (1, 0)


def test_half_of_a_design(tmp_path):
    factors = [dict(FACTOR, name=name) for name in 'fgh']
    study = read(tmp_path, cross=dict(config='c.py', factors=factors, fraction='1/2'))
    assert len(study.rows) == 4


def test_long_names_have_different_folders(tmp_path):
    labels = {'the same long label': {}, 'another long label': {}}
    factors = [dict(FACTOR, name=name, levels=labels) for name in 'fghij']
    rows = read(tmp_path, cross=dict(config='c.py', factors=factors)).rows
    slugs = {row.slug for row in rows}
    assert len(slugs) == 32 and max(map(len, slugs)) == LONGEST_SLUG
    assert rows[0].slug.startswith('another_long_label_another_long_label_')


def test_tuned_study_has_a_seed_for_each_search(tmp_path):
    tune = dict(budget=4, searches=2, keys={'optim_wrapper.optimizer.lr': 8})
    assert read(tmp_path, rows=[ROW, OTHER], tune=tune).seeds == (0, 1)


@pytest.mark.parametrize(
    'study, code',
    [
        (dict(), 'no-rows'),
        (dict(rows=[ROW], papers='x'), 'wrong-content'),
        (dict(rows=[dict(ROW, confg='x')]), 'wrong-content'),
        (dict(rows=[ROW, ROW]), 'same-row-name'),
        (dict(rows=[ROW, dict(OTHER, name='A')]), 'same-row-name'),
        (dict(rows=[dict(ROW, against='z')]), 'unknown-row'),
        (dict(rows=[ROW, {**OTHER, 'from': dict(row='z')}]), 'unknown-row'),
        (dict(rows=[{**ROW, 'from': dict(row='a')}]), 'unknown-row'),
        (dict(rows=[{**ROW, 'from': {}}]), 'row-or-files'),
        (dict(rows=[dict(name='a')]), 'wrong-content'),
        (dict(rows=[ROW], seeds=[]), 'wrong-content'),
        (dict(rows=[ROW], interim_analyses=0), 'wrong-content'),
        (
            dict(cross=dict(config='c', factors=[FACTOR], fraction='1/2')),
            'wrong-fraction',
        ),
        (
            dict(cross=dict(config='c', factors=[dict(FACTOR, levels={'off': {}})])),
            'wrong-content',
        ),
        (
            dict(rows=[ROW], tune=dict(budget=2, keys={'lr': 0.5})),
            'wrong-content',
        ),
        (
            dict(rows=[ROW], tune=dict(budget=2, keys={'train_cfg.x': 2})),
            'not-tunable',
        ),
    ],
)
def test_wrong_study_is_one_error(tmp_path, study, code):
    with raises_code(code) as caught:
        read(tmp_path, **study)
    assert '\n' not in str(caught.value)


def test_missing_file_is_an_error(tmp_path):
    with raises_code('no-config'):
        read_study(tmp_path / 'none.yaml')


@pytest.mark.parametrize(
    'key, unit, lower',
    [
        ('knn', '%', False),
        ('voc07_ap', '%', False),
        ('nyuv2_1.25', '%', False),
        ('nyuv2_rms', '', True),
        ('nyuv2_rel', '', True),
    ],
)
def test_score_has_a_unit_and_a_direction(key, unit, lower):
    assert metric_of(key, key) == dict(key=key, label=key, unit=unit, lower_is_better=lower)
