"""The page of what was measured: one row a subject, one table a data set, one score against another."""

import json
import os
import re
from pathlib import Path

import pytest

from mmairl.report.evaluation_page import records_in, results, write_evaluation_page


def leave(folder: Path, name: str, subject: str, scores: dict, **more) -> None:
    folder.mkdir(exist_ok=True)
    record = dict(protocol='knn', config='configs/a.py', subject=subject, scores=scores, seconds=1.0)
    record |= {'checkpoint': None, 'part': 'student', 'details': {}, **more}
    (folder / f'{name}.json').write_text(json.dumps(record))


def test_each_data_set_has_a_table_of_subjects(tmp_path):
    leave(tmp_path, '1', 'x', {'k-NN, k = 20': 50.0})
    leave(tmp_path, '2', 'x', {'linear, top-1': 60.0})
    leave(tmp_path, '3', 'y', {'k-NN, k = 20': 40.0})
    leave(tmp_path, '4', 'x', {'linear, top-1': 70.0}, config='configs/evaluation/cifar10_r50.py')
    (tmp_path / 'other.json').write_text('[1, 2]')
    tables = results(records_in(tmp_path))
    assert [(name, [row.subject for row in rows]) for name, _, rows in tables] == [
        ('a', ['x', 'y']),
        ('cifar10_r50', ['x']),
    ]
    first = tables[0][2][0]
    assert first.scores == {'k-NN, k = 20': 50.0, 'linear, top-1': 60.0} and first.seconds == 2
    page = write_evaluation_page(tmp_path).read_text()
    assert page.count('<table>') == 2 and '>70.0<' in page and '–' in page


def test_other_images_have_their_own_table(tmp_path):
    for number, (content, score) in enumerate([('old', 'k-NN, k = 20'), ('new', 'linear, top-1'), ('old', 'SVM, mAP')]):
        identity = dict(weights='1', data=dict(test=dict(content=content)), protocol=score)
        leave(tmp_path, str(number), 'x', {score: 50.0}, identity=identity)
    scores = [[row.scores for row in rows] for _, _, rows in results(records_in(tmp_path))]
    assert scores == [[{'k-NN, k = 20': 50.0, 'SVM, mAP': 50.0}], [{'linear, top-1': 50.0}]]
    assert (
        'Other images than above: data.test.content (old there, new here).'
        in write_evaluation_page(tmp_path).read_text()
    )


def test_other_settings_have_their_own_row(tmp_path):
    for number, (kind, temperature, score) in enumerate(
        [('a', 0.07, 60.0), ('a', 0.1, 50.0), ('a', 0.07, 61.0), ('b', 0.07, 40.0)]
    ):
        identity = dict(weights='1', network=dict(type=kind), protocol=dict(name='knn', temperature=temperature))
        leave(tmp_path, str(number), 'x', {'k-NN, k = 20': score}, identity=identity)
        os.utime(tmp_path / f'{number}.json', (number, number))
    [(_, _, rows)] = results(records_in(tmp_path))
    assert [row.scores['k-NN, k = 20'] for row in rows] == [61.0, 50.0, 40.0]
    assert 'other protocol.temperature (0.07 there, 0.1 here)' in rows[1].subject
    assert len({row.subject for row in rows}) == 3


def test_few_labeled_images_have_a_chart(tmp_path):
    low_shot = dict(mean={'1': 10.0, '8': 30.0}, std={'1': 1.0, '8': 2.0})
    leave(tmp_path, '1', 'x', {'SVM, mAP': 50.0}, details=dict(low_shot=low_shot))
    page = write_evaluation_page(tmp_path).read_text()
    assert 'few labeled images' in page and 'positive images per class' in page
    other = dict(mean={'1': 11.1, '8': 33.3}, std={'1': 1.0, '8': 2.0})  # of another run's network of the same name
    identity = dict(weights='2')
    leave(tmp_path / 'b', '1', 'x', {'SVM, mAP': 51.0}, details=dict(low_shot=other), identity=identity)
    page = write_evaluation_page(tmp_path, more=[tmp_path / 'b']).read_text()
    assert '30.0' in page and '33.3' in page


def test_plot_shows_the_correlation_of_two_scores(tmp_path, run_tool, capsys):
    for i, (x, y) in enumerate([(60, 20), (65, 25), (70, 30)]):
        leave(tmp_path / 'runs', f'{i}x', f'net{i}', {'linear, top-1': x})
        leave(tmp_path / 'runs', f'{i}y', f'net{i}', {'finetune, top-1': y}, config='configs/evaluation/lt.py')
    command = ['tools/report.py', tmp_path / 'runs', '--out', tmp_path / 'page']
    run_tool(*command, '--plot', 'linear, top-1', 'finetune, top-1')
    page = (tmp_path / 'page/evaluation.html').read_text()
    assert re.search(r'correlation 1\.00 over 3 networks', page) and all(f'net{i}' in page for i in range(3))
    with pytest.raises(SystemExit, match='2'):
        run_tool(*command, '--plot', 'linear', 'top')
    assert 'no result has the score' in capsys.readouterr().err


def test_networks_of_one_name_have_distinct_rows(tmp_path):
    for number, run in enumerate(('sgd', 'lars')):
        checkpoint = f'work_dirs/{run}/epoch_60.pth'
        leave(tmp_path, f'{run}1', 'student of epoch_60.pth', {'k-NN, k = 20': 90.0 - number}, checkpoint=checkpoint)
        leave(tmp_path, f'{run}2', 'student of epoch_60.pth', {'linear, top-1': 80.0 - number}, checkpoint=checkpoint)
    [(_, _, rows)] = results(records_in(tmp_path))
    assert {row.subject: row.scores for row in rows} == {
        'student of sgd/epoch_60.pth': {'k-NN, k = 20': 90.0, 'linear, top-1': 80.0},
        'student of lars/epoch_60.pth': {'k-NN, k = 20': 89.0, 'linear, top-1': 79.0},
    }
    for weights in ('1234567', '89abcde'):
        identity = dict(weights=weights)
        leave(tmp_path / 'x', weights, 'student of x.pth', {'linear': 1.0}, checkpoint='run/x.pth', identity=identity)
    [(_, _, rows)] = results(records_in(tmp_path / 'x'))
    assert [row.subject for row in rows] == [f'student of run/x.pth, weights {start}' for start in ('123456', '89abcd')]
