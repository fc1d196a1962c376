"""Test that mmairl's results equal those of installed libraries, and that missing libraries are reported."""

import importlib.util

import pytest

from projects.parity import compare, precision


def test_missing_library_is_reported_in_its_row(monkeypatch):
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
    rows = compare.rows()
    assert len(rows) == len(compare.COMPARISONS)
    assert all(row[2] == 'not run' and 'is not installed' in row[3] for row in rows)


@pytest.mark.parametrize('package', compare.PACKAGES)
def test_libraries_equal_ours_except_named_factors(package):
    pytest.importorskip(package, reason=f'{package} is not installed')
    # In these computations, the libraries' definitions differ from mmairl's, so their results may differ.
    different = ('warm-up', 'momentum over a run')
    rows = [row for row in compare.rows() if row[0] == compare.PACKAGES[package]]
    assert rows and all(
        'equal' in row[2] for row in rows if not any(word in row[1] for word in different)
    )


@pytest.mark.slow
def test_bfloat16_gradient_is_measured_during_training(monkeypatch):
    monkeypatch.setitem(precision.NETWORKS, 18, (512, (0, 1)))
    lines = [line.strip('| ').split(' | ') for line in precision.rows(18, batch=4, size=32)]
    assert [cells[1] for cells in lines] == ['0', '1'] and lines[0][2] != lines[1][2]
    assert all(
        -1 <= float(worst) <= float(median) <= 1
        for c in lines
        for median, worst in (c[3:5], c[5:7])
    )
