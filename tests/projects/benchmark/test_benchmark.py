"""The arithmetic of the benchmark, and that every suite runs and both sides compute the same."""

import json
import subprocess
import sys

import pytest

from mmairl.engine.launch import register
from projects.benchmark import timing
from projects.benchmark.report import cells, write
from projects.benchmark.suites import SUITES
from projects.benchmark.timing import Case, Row, compare


def test_sides_run_in_turn_and_the_ratio_is_of_the_medians(monkeypatch):
    ran, clock = [], iter([0, 1, 10, 14, 20, 22, 30, 38, 40, 43, 50, 51])
    monkeypatch.setattr(timing.time, 'perf_counter', lambda: float(next(clock)))
    case = Case('a', 'b', lambda: ran.append('A'), lambda: ran.append('B'), images=10)
    row = compare(case, rounds=3)
    assert ''.join(ran) == 'AB' + 'ABABAB'
    assert (row.ours, row.peer, row.ratio) == (2, 4, 2)  # medians of 1 2 3 and 4 8 1
    assert (row.ours_spread, row.peer_spread, row.images_per_second) == (2, 7, 5)


def test_sides_that_differ_are_not_compared():
    def check(ours, theirs):
        assert ours == theirs

    with pytest.raises(AssertionError):
        compare(Case('a', 'b', lambda: 1, lambda: 2, check), rounds=1)


@pytest.mark.skipif(sys.platform != 'linux', reason='the peak is read from /proc')
def test_the_peak_is_what_a_call_holds_at_most():
    """In a process of its own, as the benchmark's is: this one holds what other tests have freed."""
    size = 64 * 2**20
    code = f"""
import torch
from projects.benchmark.timing import peak_bytes
print(peak_bytes(lambda: torch.ones({size} // 4).sum(), 'cpu'))
"""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert size <= int(done.stdout) < 2 * size


@pytest.mark.parametrize('name', SUITES)
def test_each_suite_runs_at_test_size(name):
    register()
    for case in SUITES[name]('cpu', True):
        row = compare(case, rounds=1)
        assert row.ours > 0 and row.peer > 0


def test_markdown_and_json_hold_the_same_rows(tmp_path):
    row = Row('what', 'whom', 0.5, 1.5, 0.1, 0.3, 20.0, 2**20, 2**31, '>= 2')
    files = write([row], 'cpu', 'the command', tmp_path / 'out')
    record = json.loads(files[0].read_text())
    assert record['rows'][0]['ratio'] == 3 and record['command'] == 'the command'
    assert '| ' + ' | '.join(cells(row)) + ' |' in files[1].read_text()
    assert cells(row)[2:8] == ['500 ms', '1.50 s', '3.00', '20 % / 20 %', '20', '1 MiB / 2.00 GiB']
