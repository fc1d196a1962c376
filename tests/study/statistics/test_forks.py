"""Forked rows (branches of another row's runs): which comparisons are paired, how precise they are, and what the page
states.
"""

import math

import numpy as np
import pytest
from study.pages.planted import forked, one_decided
from study.pages.test_study_page import section, text_of
from study.small_runs import recorded

from mmairl.study.pages.study_page import write_study_page
from mmairl.study.statistics.compare_rows import compare_scores, shared_epochs
from mmairl.study.statistics.forks import fork_summary


def fork(name: str, of: str, epoch: int) -> dict:
    return dict(name=name, fork=dict(of=of, at=0.5, epoch=epoch))


TRUNK = dict(name='trunk', fork=None)
BRANCH = fork('branch', 'trunk', 6)


@pytest.mark.parametrize(
    'one, two, epochs',
    [
        (BRANCH, TRUNK, 6),
        (TRUNK, BRANCH, 6),
        (BRANCH, fork('sister', 'trunk', 6), 6),
        (BRANCH, fork('earlier', 'trunk', 2), 0),
        (BRANCH, fork('foreign', 'other', 6), 0),
        (BRANCH, dict(name='other'), 0),
        (TRUNK, dict(name='other'), 0),
    ],
)
def test_forks_share_epochs_up_to_the_fork_point(one, two, epochs):
    assert shared_epochs(one, two) == epochs


def test_forks_are_paired_without_start_records():
    study = forked()
    for row in study['rows']:
        for run in row['runs']:
            run['start'] = None
    assert all(pair.blocks for pair in compare_scores(study, 'k-nn', 1.0))
    for row in study['rows']:
        row['fork'] = None
    assert not any(pair.blocks for pair in compare_scores(study, 'k-nn', 1.0))


def test_summary_counts_equivalent_independent_runs():
    null, warmer = fork_summary(forked(), 'k-nn')
    assert (null['null'], warmer['null']) == (True, False)
    assert warmer['within'] == pytest.approx(0.5) and warmer['epoch'] == 6
    one, two = (np.var(list(row), ddof=1) for row in scores(forked())[::2])
    error = 0.5 / math.sqrt(5)
    assert math.sqrt((one + two) / warmer['runs']) <= error < math.sqrt((one + two) / (warmer['runs'] - 1))
    assert fork_summary(one_decided(), 'k-nn') == []


def scores(study: dict) -> list[list[float]]:
    return [[run['scores']['k-nn'] for run in row['runs']] for row in study['rows']]


@pytest.mark.parametrize(
    'text, null',
    [
        ('decay: 1.0000001e-4\n', True),
        ('decay: 1.00001e-4\n', False),
        ('decay: 2.0e-4\n', False),
        ('decay: none\n', False),
        ('[not yaml', False),
    ],
)
def test_null_fork_changes_less_than_a_millionth(text, null):
    study = forked()
    for run in study['rows'][1]['runs']:
        run['config_text'] = text
    assert fork_summary(study, 'k-nn')[0]['null'] == null


# These are k-NN accuracies of five runs (trunks), and of two sets of runs that branch off from the trunks after epoch 3
# (null forks). The weight decay of a null fork differs from that of its trunk by one or two ten-millionths. The networks
# are small ResNets, trained for 6 epochs on 6 000 images of Shapes with 48 pixels, and tested on 2 400 images.
TRUNKS = [25.75, 13.0, 16.125, 13.583, 22.542]
NULL_FORKS = [[25.0, 13.333, 16.708, 14.625, 22.75], [25.417, 12.958, 15.667, 13.875]]


@pytest.mark.parametrize('scores', NULL_FORKS)
def test_measured_null_forks_do_not_differ(scores):
    trunk = recorded('trunk', TRUNKS, None)
    branch = recorded('again', scores, None, on='trunk') | fork('again', 'trunk', 3)
    (pair,) = compare_scores(dict(rows=[trunk, branch], metrics=[dict(key='knn')]), 'knn', 1.0)
    assert pair.blocks and pair.verdict in ('equivalent', 'inconclusive')


def test_page_states_fork_point_and_precision(tmp_path):
    text = write_study_page(forked(), tmp_path / 'page.html').read_text()
    assert text_of(section(text, 'effects')).count('changed after epoch 6') == 2
    noise = text_of(section(text, 'noise'))
    assert 'does not predict the effect of the same change during a whole run' in noise
    assert 'again (A/A) trunk epoch 6' in noise and 'warmer trunk epoch 6' in noise
