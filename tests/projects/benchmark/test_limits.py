"""What the machine can do at best, and how a measured row stands to it."""

import itertools

import pytest

from projects.benchmark import limits, timing
from projects.benchmark.limits import Limits, measure
from projects.benchmark.report import COLUMNS, cells, write
from projects.benchmark.timing import Case, Row, compare


def row(ours: float, **work: float) -> Row:
    return Row('what', 'whom', ours, 1.5, 0.1, 0.3, None, None, None, '', **work)


def test_the_slower_of_arithmetic_and_memory_sets_the_limit():
    machine = Limits(flops=100.0, moved=10.0)
    assert machine.seconds(flops=300, moved=20) == 3 and machine.seconds(flops=100, moved=20) == 2
    assert machine.reached(row(6.0, flops=300, moved=20)) == 0.5
    assert machine.reached(row(8.0, moved=20)) == 0.25


def test_no_least_work_is_no_fraction():
    assert Limits(1.0, 1.0).reached(row(1.0)) is None
    assert cells(row(1.0), Limits(1.0, 1.0))[COLUMNS.index('of the limit')] == ''


@pytest.mark.parametrize(
    'copied,summed,moved',
    [([0.1, 4.0, 8.0], [0.1, 7.0, 7.0], 2 * 400 / 4), ([0.1, 4.0, 8.0], [0.1, 9.0, 5.0], 3 * 400 / 5)],
    ids=['copy', 'sum'],
)
def test_the_best_round_counts_and_the_first_does_not(monkeypatch, copied, summed, moved):
    took = itertools.chain([0.1, 2.0, 0.5], copied, summed)
    monkeypatch.setattr(limits, 'timed', lambda work, device: next(took))
    monkeypatch.setattr(limits, 'MATRIX', dict(cpu=10))
    monkeypatch.setattr(limits, 'COPIED', dict(cpu=400))
    assert measure('cpu', rounds=2) == Limits(flops=2 * 1000 / 0.5, moved=moved)


def test_both_are_measured_on_the_device(monkeypatch):
    monkeypatch.setattr(limits, 'MATRIX', dict(cpu=64))
    monkeypatch.setattr(limits, 'COPIED', dict(cpu=2**16))
    found = measure('cpu', rounds=1)
    assert found.flops > 0 and found.moved > 0


def test_a_case_hands_its_least_work_to_its_row(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(timing.time, 'perf_counter', lambda: float(next(clock)))
    case = Case('a', 'b', lambda: None, lambda: None, flops=30, moved=2, note='why')
    found = compare(case, rounds=1)
    assert (found.flops, found.moved, found.note) == (30, 2, 'why')
    assert Limits(flops=60, moved=10).reached(found) == 0.5


def test_the_report_gives_fraction_limits_and_each_note_once(tmp_path):
    rows = [row(6.0, flops=300e9, note='the reason'), row(8.0, note='the reason')]
    _, page = write(rows, 'cpu', 'the command', tmp_path / 'out', Limits(flops=100e9, moved=10e9))
    text = page.read_text()
    assert '| 50 % |' in text and text.count('the reason') == 1
    assert '100 GFLOP/s' in text and '10 GB/s' in text


def test_every_column_has_a_cell():
    assert len(cells(row(1.0, flops=1), Limits(1.0, 1.0))) == len(COLUMNS)
