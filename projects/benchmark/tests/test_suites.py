"""Each suite runs at tiny size, and both sides compute the same where the suite compares results."""

import pytest

from projects.benchmark.__main__ import SUITES
from projects.benchmark.timing import compare


@pytest.mark.slow
@pytest.mark.parametrize('suite', SUITES)
def test_suite_runs_with_equal_results(suite):
    times = [compare(case, rounds=1) for case in SUITES[suite]('cpu', quick=True)]
    assert times
    assert all(ours > 0 for ours, _ in times)
