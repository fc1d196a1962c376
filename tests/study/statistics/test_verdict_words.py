"""Verdict words: those that this version writes, and those in result files of earlier versions."""

import pytest

from mmairl.study.statistics.verdict_words import (
    DIFFERS,
    EQUIVALENT,
    UNDECIDED,
    current_verdict,
    decision_of,
    verdict_of,
)


@pytest.mark.parametrize(
    'decision, estimate, by_counts, word',
    [
        (DIFFERS, 2.0, False, 'higher'),
        (DIFFERS, -2.0, False, 'lower'),
        (DIFFERS, None, True, 'differs in how many runs collapse'),
        (EQUIVALENT, 0.1, False, 'equivalent'),
        (UNDECIDED, 0.1, False, 'inconclusive'),
    ],
)
def test_word_states_the_decision_and_direction(decision, estimate, by_counts, word):
    assert verdict_of(decision, estimate, by_counts) == word
    assert decision_of(word) == decision
    assert current_verdict(dict(verdict=word)) == word


@pytest.mark.parametrize(
    'stored, word',
    [
        (dict(verdict='differs', estimate=2.0), 'higher'),
        (dict(verdict='differs', estimate=-2.0, share=None), 'lower'),
        (dict(verdict='differs', estimate=2.0, share=0.01), 'differs in how many runs collapse'),
        (dict(verdict='undecided', estimate=2.0), 'inconclusive'),
        (dict(verdict='runs collapsed: no verdict by the mean'), 'not tested (collapsed runs)'),
        (dict(verdict='one seed: no verdict'), 'not tested (one seed)'),
    ],
)
def test_words_of_earlier_versions_are_read(stored, word):
    assert current_verdict(stored) == word
