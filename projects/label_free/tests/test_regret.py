"""Compare regret with numbers computed by hand, and simulate how often an uninformative measure is trusted.

Regret is the test score that is lost if a measure chooses among networks.
"""

from pathlib import Path

import numpy as np
import pytest

from mmairl.errors import UserError
from mmairl.io import write_json
from projects.label_free.regret import UNDECIDED, USELESS, judge, regret_interval, regrets, words
from projects.label_free.trusted import EPOCHS, SETTINGS, TRUSTED, trusted


def test_regret_is_the_best_minus_the_chosen():
    scores = np.array([50.0, 60, 40])
    assert regrets(scores, np.array([1.0, 0, 2])) == 20 and regrets(scores, scores) == 0
    assert regrets(scores, np.array([2.0, 0, 2])) == 15
    # If all networks have a goodness of -inf, they are tied, and the regret is the mean regret of all networks.
    assert regrets(scores, np.full(3, -np.inf)) == pytest.approx(10)
    low, high = regret_interval([(scores, -scores)] * 4)
    assert 0 <= low < 20 == high


def test_verdicts_are_wrong_in_at_most_one_of_twenty():
    """For each of 20 measures, the regret of a choice is within the margin with probability 1/2.

    TRUSTED claims a probability above 1/2 and USELESS one below 1/2, so both are wrong.
    """
    rng = np.random.default_rng(0)
    studies = [words(rng.binomial(15, 0.5, 20), [15] * 20, [0.0] * 20, 1.0) for _ in range(2000)]
    for word in (TRUSTED, USELESS):
        assert np.mean([word in verdicts for verdicts in studies]) <= 0.05
    # Without Holm's correction, a measure would be TRUSTED if at least 12 of its 15 choices are within the margin. A single
    # such test errs in less than 5 % of studies, but at least one of 20 tests errs in more than 25 %.
    naive = np.mean((rng.binomial(15, 0.5, (2000, 20)) >= 12).any(1))
    assert naive > 0.25


def test_searches_of_one_row_count_once():
    """Each of five rows of a study has three choices, one per search.

    All three agree, so 15 choices within the margin count as only five independent observations.
    """
    scores = np.array([60.0, 50, 40])
    choices = {'knows': [(scores, scores)] * 15}
    rows = {'knows': [row for row in 'abcde' for _ in range(3)]}
    assert judge(choices, 1.0)['knows']['word'] == TRUSTED
    cell = judge(choices, 1.0, rows)['knows']
    assert cell['choices'] == cell['within'] == 15
    # There is only one measure, so Holm's method corrects nothing. Five of five rows are significant at the 5 % level
    # (p = 1/32), and four of four are not (p = 1/16).
    assert cell['word'] == TRUSTED
    four = {'knows': [row for row in 'abcd' for _ in range(3)]}
    assert judge({'knows': choices['knows'][:12]}, 1.0, four)['knows']['word'] == UNDECIDED


def test_only_reliable_measures_are_trusted():
    rng = np.random.default_rng(0)
    scores = [rng.normal(60, 5, 6) for _ in range(12)]
    noise = {str(number): [(s, rng.normal(size=6)) for s in scores] for number in range(10)}
    cells = judge(
        dict(
            noise,
            knows=[(s, s + rng.normal(0, 0.1, 6)) for s in scores],
            errs=[(s, -s) for s in scores],
        ),
        1.0,
    )
    assert cells['knows']['word'] == TRUSTED and cells['errs']['word'] == USELESS
    assert cells['knows']['correlation'] > 0.9 and cells['errs']['correlation'] == pytest.approx(-1)
    assert cells['errs']['low'] < cells['errs']['regret'] <= cells['errs']['high'] + 3
    # Three choices are too few for a verdict.
    assert judge({'knows': [(s, s) for s in scores[:3]]}, 1.0)['knows']['word'] == UNDECIDED
    rare = [
        (s, np.where(s == s.min(), 99, s) if number < 2 else s) for number, s in enumerate(scores)
    ]
    # The measure is right in ten of twelve choices, but two large errors raise its mean regret above the margin.
    assert judge({'rare': rare}, 1.0)['rare']['word'] != TRUSTED


def evidence(folder: Path, situation: str, **words: str) -> Path:
    """Write a study.json whose measures have the verdicts `words`. The regret increases from each measure to the next."""
    rest = dict(low=0, high=1, within=14, choices=15)
    cells = {
        name: dict(word=word, regret=place / 10, **rest)
        for place, (name, word) in enumerate(words.items())
    }
    cells['held-out labels'] = dict(word=TRUSTED, regret=0, **rest)
    record = dict(measures=dict(margin=1, situations={situation: cells}))
    return write_json(folder / 'evidence.json', record) or folder / 'evidence.json'


def test_the_trusted_measure_of_least_regret_chooses(tmp_path):
    path = evidence(tmp_path, SETTINGS, LiDAR=UNDECIDED, RankMe=TRUSTED, CLID=TRUSTED)
    measure, reason = trusted(SETTINGS, path)
    assert (
        measure == 'RankMe'
        and 'regret was 0.1 points (0.0 to 1.0), 14 of 15 choices within 1' in reason
    )


def test_without_a_trusted_measure_nothing_is_chosen(tmp_path):
    path = evidence(tmp_path, SETTINGS, RankMe=TRUSTED)
    for arguments in ((EPOCHS, path), (SETTINGS,)):
        with pytest.raises(UserError) as error:
            trusted(*arguments)
        assert error.value.code == 'no-trusted-measure'
