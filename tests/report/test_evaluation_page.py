"""The evaluation page: a table for each data set, a row for each network, and plots of one score against another."""

import json
import os
from pathlib import Path

import pytest
from harness.errors import raises_code

from mmairl.evaluation.protocol import Result
from mmairl.report.evaluation_page import records_in, results, write_evaluation_page

KNN = 'k-NN, k = 20'
LINEAR = 'linear, top-1'


def leave(folder: Path, name: str, subject: str, scores: dict, **more) -> None:
    """Write a result file as tools/evaluate.py does."""
    folder.mkdir(exist_ok=True)
    record = dict(
        protocol='knn',
        config='configs/a.py',
        subject=subject,
        scores=scores,
        seconds=1.0,
        checkpoint=None,
        part='student',
        details={},
    )
    (folder / f'{name}.json').write_text(json.dumps(record | more))


def rows_in(folder: Path) -> list[Result]:
    """Return the rows of the page's only table."""
    [(_, _, rows)] = results(records_in(folder))
    return rows


@pytest.fixture
def two_data_sets(tmp_path) -> Path:
    leave(tmp_path, '1', 'x', {KNN: 50.0})
    leave(tmp_path, '2', 'x', {LINEAR: 60.0})
    leave(tmp_path, '3', 'y', {KNN: 40.0})
    leave(tmp_path, '4', 'x', {LINEAR: 70.0}, config='configs/evaluation/cifar10_r50.py')
    (tmp_path / 'other.json').write_text('[1, 2]')
    return tmp_path


def test_each_data_set_has_a_table_of_subjects(two_data_sets):
    tables = results(records_in(two_data_sets))
    subjects = {data: [row.subject for row in rows] for data, _, rows in tables}
    assert subjects == {'a': ['x', 'y'], 'cifar10_r50': ['x']}
    [first, _] = tables[0][2]
    assert first.scores == {KNN: 50.0, LINEAR: 60.0}
    assert first.seconds == 2


def test_page_shows_scores_and_dashes(two_data_sets):
    page = write_evaluation_page(two_data_sets).read_text()
    assert page.count('<table>') == 2
    assert f'Highest {KNN} on a: 50.0 (x).' in page
    assert '>70.0<' in page
    assert '–' in page


def test_other_images_have_their_own_table(tmp_path):
    for content, score in (('old', KNN), ('new', LINEAR), ('old', 'SVM, mAP')):
        data = dict(test=dict(content=content))
        identity = dict(weights='1', data=data, protocol=score)
        leave(tmp_path, score, 'x', {score: 50.0}, identity=identity)
        os.utime(tmp_path / f'{score}.json', (1, 1 if content == 'old' else 2))
    scores = [row.scores for _, _, rows in results(records_in(tmp_path)) for row in rows]
    assert scores == [{KNN: 50.0, 'SVM, mAP': 50.0}, {LINEAR: 50.0}]
    page = write_evaluation_page(tmp_path).read_text()
    text = 'The images of this table differ from those of the first table for this data set: data.test.content (old vs. new).'
    assert text in page


def test_other_settings_have_their_own_row(tmp_path):
    measured = [('a', 0.07, 60.0), ('a', 0.1, 50.0), ('a', 0.07, 61.0), ('b', 0.07, 40.0)]
    for number, (kind, temperature, score) in enumerate(measured):
        protocol = dict(name='knn', temperature=temperature)
        identity = dict(weights='1', network=dict(type=kind), protocol=protocol)
        leave(tmp_path, str(number), 'x', {KNN: score}, identity=identity)
        os.utime(tmp_path / f'{number}.json', (number, number))
    rows = rows_in(tmp_path)
    assert [row.scores[KNN] for row in rows] == [61.0, 50.0, 40.0]
    assert 'other protocol.temperature (0.07 vs. 0.1)' in rows[1].subject
    assert len({row.subject for row in rows}) == 3


def test_few_labeled_images_have_a_chart(tmp_path):
    folders = []
    for weights, accuracy in (('1', 30.0), ('2', 33.3)):
        folders.append(tmp_path / weights)
        low_shot = dict(mean={'1': 10.0, '8': accuracy}, std={'1': 1.0, '8': 2.0})
        more = dict(details=dict(low_shot=low_shot), identity=dict(weights=weights))
        leave(folders[-1], '1', 'x', {'SVM, mAP': 50.0}, **more)
    page = write_evaluation_page(folders[0], more=folders[1:]).read_text()
    assert 'few labeled images' in page
    assert 'positive images per class' in page
    assert '30.0 ± 2.0' in page
    assert '33.3 ± 2.0' in page


@pytest.fixture
def two_scores(tmp_path) -> list:
    """Return the command that plots two scores of three networks. The two scores were measured on different data sets."""
    runs = tmp_path / 'runs'
    for number in range(3):
        subject = f'net{number}'
        leave(runs, f'{number}x', subject, {LINEAR: 60 + 5 * number})
        score = {'finetune, top-1': 20 + 5 * number}
        leave(runs, f'{number}y', subject, score, config='configs/evaluation/lt.py')
    return ['tools/report.py', runs, '--out', tmp_path / 'page', '--plot']


def test_plot_shows_the_correlation_of_two_scores(two_scores, tmp_path, run_tool):
    run_tool(*two_scores, LINEAR, 'finetune, top-1')
    page = (tmp_path / 'page/evaluation.html').read_text()
    assert 'correlation 1.00 over 3 networks' in page
    assert all(f'net{number}' in page for number in range(3))


def test_plot_of_an_unknown_score_exits(two_scores, run_tool, capsys):
    with pytest.raises(SystemExit, match='2'):
        run_tool(*two_scores, 'linear', 'top')
    assert 'no result has this score' in capsys.readouterr().err


def test_files_of_one_name_are_named_by_folder(tmp_path):
    for number, run in enumerate(('sgd', 'lars')):
        checkpoint = f'work_dirs/{run}/epoch_60.pth'
        for score in (KNN, LINEAR):
            values = {score: 90.0 - number}
            subject = 'student of epoch_60.pth'
            leave(tmp_path, f'{run} {score}', subject, values, checkpoint=checkpoint)
    assert {row.subject: row.scores for row in rows_in(tmp_path)} == {
        'student of sgd/epoch_60.pth': {KNN: 90.0, LINEAR: 90.0},
        'student of lars/epoch_60.pth': {KNN: 89.0, LINEAR: 89.0},
    }


def test_longer_names_state_watched_test_images(tmp_path):
    watched = 'whose run watched the test images'
    for run in ('a', 'b'):
        subject = f'student of epoch_60.pth, {watched}'
        leave(tmp_path, run, subject, {KNN: 90.0}, checkpoint=f'work_dirs/{run}/epoch_60.pth')
    assert {row.subject for row in rows_in(tmp_path)} == {
        f'student of a/epoch_60.pth, {watched}',
        f'student of b/epoch_60.pth, {watched}',
    }


def test_replaced_files_are_named_by_weights(tmp_path):
    for number, weights in enumerate(('1234567', '89abcde')):
        more = dict(checkpoint='run/x.pth', identity=dict(weights=weights))
        leave(tmp_path, weights, 'student of x.pth', {'linear': 1.0}, **more)
        os.utime(tmp_path / f'{weights}.json', (number, number))
    names = [row.subject for row in rows_in(tmp_path)]
    assert names == [f'student of run/x.pth, weights {start}' for start in ('123456', '89abcd')]


@pytest.mark.parametrize(
    'details',
    [
        dict(low_shot=dict(mean={'a': 1.0}, std={})),
        dict(low_shot=dict(mean={'²': 1.0}, std={})),
        dict(low_shot=dict(mean={'0': 1.0}, std={})),
        dict(low_shot=dict(mean={'9' * 5000: 1.0}, std={})),
        dict(confusion=dict(classes=['a', 'b'], counts=[[1], [2, 3]])),
        dict(confusion=dict(classes=['a'], counts=[])),
    ],
)
def test_details_of_another_form_are_an_error(tmp_path, details):
    leave(tmp_path, 'a', 'x', {KNN: 50.0}, details=details)
    with raises_code('wrong-content'):
        write_evaluation_page(tmp_path)


def test_page_survives_odd_names_weights_and_scores(tmp_path):
    odd = {KNN: float('nan'), LINEAR: 1e308, '\ud800': 250.0}
    leave(tmp_path, 'a', '\udfff', odd, identity=dict(weights=[1]))
    page = write_evaluation_page(tmp_path, plots=[(KNN, 'absent')]).read_text()
    assert '\\ud800' in page and '\\udfff' in page
