"""The arithmetic of the benchmark, and that every suite runs and both sides compute the same."""

import itertools
import json
import subprocess
import sys

import pytest

from mmairl.engine.launch import register
from projects.benchmark import limits, scaling, timing
from projects.benchmark.limits import Limits, measure
from projects.benchmark.report import COLUMNS, cells, write
from projects.benchmark.suites import SUITES
from projects.benchmark.timing import Case, Row, compare


def test_sides_run_in_turn_and_the_ratio_is_of_the_medians(monkeypatch):
    ran, clock = [], iter([0, 1, 10, 14, 20, 22, 30, 38, 40, 43, 50, 51])
    monkeypatch.setattr(timing.time, 'perf_counter', lambda: float(next(clock)))
    work = dict(images=10, flops=30, moved=2, note='why')
    row = compare(Case('a', 'b', lambda: ran.append('A'), lambda: ran.append('B'), **work), rounds=3)
    assert ''.join(ran) == 'AB' + 'ABABAB'
    assert (row.ours, row.peer, row.ratio) == (2, 4, 2)  # medians of 1 2 3 and 4 8 1
    assert (row.ours_spread, row.peer_spread, row.images_per_second) == (2, 7, 5)
    assert Limits(flops=60, moved=10).reached(row) == 0.25 and row.note == 'why'  # max(30 / 60, 2 / 10) of 2 seconds
    assert Limits(flops=60, moved=1).reached(row) == 1


def test_sides_that_differ_are_not_compared():
    def check(ours, theirs):
        assert ours == theirs

    with pytest.raises(AssertionError):
        compare(Case('a', 'b', lambda: 1, lambda: 2, check), rounds=1)


@pytest.mark.skipif(sys.platform != 'linux', reason='the peak is read from /proc')
def test_the_peak_is_what_a_call_holds_at_most():
    """In a process of its own: this one holds what other tests have freed."""
    size = 64 * 2**20
    measured = f"peak_bytes(lambda: torch.ones({size} // 4).sum(), 'cpu')"
    code = f'import torch; from projects.benchmark.timing import peak_bytes; print({measured})'
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert size <= int(done.stdout) < 2 * size


@pytest.mark.parametrize('name', SUITES)
def test_each_suite_runs_at_test_size(name):
    register()
    for case in SUITES[name]('cpu', True):
        row = compare(case, rounds=1)
        assert row.ours > 0 and row.peer > 0


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


def test_markdown_and_json_hold_the_same_rows_and_each_note_once(tmp_path):
    of_limit = Limits(flops=100e9, moved=10e9)
    least = dict(aim='>= 2', flops=25e9, note='the reason')
    rows = [Row('what', 'whom', 0.5, 1.5, 0.1, 0.3, 20.0, 2**20, 2**31, **least)] * 2
    files = write(rows, 'cpu', 'the command', tmp_path / 'out', of_limit)
    record, text = json.loads(files[0].read_text()), files[1].read_text()
    assert record['rows'][0]['ratio'] == 3 and record['command'] == 'the command'
    shown = ['500 ms', '1.50 s', '3.00', '20 % / 20 %', '20', '1 MiB / 2.00 GiB', '50 %', '>= 2']
    assert cells(rows[0], of_limit) == ['what', 'whom', *shown] and len(COLUMNS) == 10
    assert '| ' + ' | '.join(cells(rows[0], of_limit)) + ' |' in text
    assert text.count('the reason') == 1 and '100 GFLOP/s' in text and '10 GB/s' in text
    assert cells(Row('what', 'whom', 1, 1, 0, 0, None, None, None, ''), of_limit)[8] == ''


def test_scaling_counts_the_images_of_both_processes():
    found = {scaling.ALONE: [0.4, 0.5, 0.6], scaling.TOGETHER: [1.0, 1.0, 1.0]}
    lines, batch = scaling.table(found).splitlines(), scaling.SIZE.batch
    assert lines[2] == f'| {scaling.ALONE} | 500 ms | 40 % | {batch / 0.5:.0f} | 100 % |'
    assert lines[3] == f'| {scaling.TOGETHER} | 1000 ms | 0 % | {2 * batch:.0f} | 50 % |'


@pytest.mark.slow
def test_two_processes_time_every_way():
    seconds = scaling._read([scaling._start(2, steps=1)])
    assert seconds.keys() == scaling.SEVERAL.keys() and all(time > 0 for time in seconds.values())
