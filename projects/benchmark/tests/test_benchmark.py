"""The arithmetic of the benchmark, and that every suite runs and both sides compute the same."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mmairl.engine.run import register
from mmairl.errors import UserError
from projects.benchmark import augment, crops, gpu, scaling, step, timing
from projects.benchmark.__main__ import main
from projects.benchmark.limits import Limits
from projects.benchmark.suites import SUITES
from projects.benchmark.timing import Case, compare
from projects.benchmark.wheels import wheels

ROOT = Path(__file__).parents[3]
SLOW = ('step', 'crops', 'saving', 'linear', 'analysis', 'loader', 'many_files')


@pytest.mark.parametrize(
    'name', [pytest.param(s, marks=[pytest.mark.slow] if s in SLOW else []) for s in SUITES]
)
def test_each_suite_runs_at_test_size(name):
    register()
    for case in SUITES[name]('cpu', True):
        row = compare(case, rounds=1)
        assert row.ours > 0 and row.peer > 0


def test_sides_run_in_turn_and_the_ratio_is_of_the_medians(monkeypatch):
    ran, clock = [], iter([0, 1, 10, 14, 20, 22, 30, 38, 40, 43, 50, 51])
    monkeypatch.setattr(timing.time, 'perf_counter', lambda: float(next(clock)))
    work = dict(images=10, flops=30, moved=2, note='why')
    row = compare(
        Case('a', 'b', lambda: ran.append('A'), lambda: ran.append('B'), **work), rounds=3
    )
    assert ''.join(ran) == 'AB' + 'ABABAB'
    assert (row.ours, row.peer, row.ratio) == (2, 4, 2)  # medians of 1 2 3 and 4 8 1
    assert (row.ours_spread, row.peer_spread, row.images_per_second) == (2, 7, 5)
    assert (
        Limits(flops=60, moved=10).reached(row) == 0.25 and row.note == 'why'
    )  # max(30 / 60, 2 / 10) of 2 seconds


@pytest.mark.slow
def test_two_processes_time_every_way():
    seconds = scaling._read([scaling._start(2, steps=1)])
    assert seconds.keys() == scaling.SEVERAL.keys() and all(time > 0 for time in seconds.values())


def test_every_peer_makes_two_views_of_each_image():
    photographs = [augment.photograph(0), augment.photograph(1)]
    ours = [augment.worker_views(augment.VIEW)(augment.tensor(pixels)) for pixels in photographs]
    for name, peer in augment.worker_peers(photographs).items():
        made = peer()
        augment.same_shapes(ours, made)
        assert not any(torch.equal(*pair) for pair in made), name
    with pytest.raises(AssertionError):
        augment.same_shapes(ours, [[view.float() for view in pair] for pair in ours])


def test_the_check_sees_a_different_step(monkeypatch):
    seen = []
    monkeypatch.setattr(step, 'same_step', lambda *sides: seen.extend(sides))
    step.check_one_step()
    monkeypatch.undo()
    ours, theirs = seen[:2]
    step.same_step(ours, theirs)
    with pytest.raises(AssertionError):
        step.same_step({**ours, 'loss': ours['loss'] + 1e-5}, theirs)
    with pytest.raises(AssertionError, match='first layers move differently'):
        step.same_step({**ours, 'first': (1 + 1e-3) * ours['first']}, theirs)


def test_lightly_takes_the_same_step_from_the_same_weights():
    pytest.importorskip(
        'lightly', reason='a peer that nothing of ours needs; pip install --no-deps lightly'
    )
    assert list(step.peers()) == ["mmpretrain's BYOL", "lightly's BYOL"]
    step.check_one_step()
    crops.check_one_step()


def test_small_crops_take_lightlys_step_in_two_processes_as_well(
    run_processes, monkeypatch, capsys
):
    monkeypatch.setattr(sys, 'argv', ['benchmark', '--suite', 'step', '--processes', '2'])
    with pytest.raises(SystemExit, match='2'):
        main()
    assert '--processes is of --suite crops' in capsys.readouterr().err
    pytest.importorskip(
        'lightly', reason='a peer that nothing of ours needs; pip install --no-deps lightly'
    )
    run_processes(2, Path(__file__).with_name('crops_over_processes.py'))


def test_a_stage_of_the_visit_to_a_gpu_that_fails_or_is_cut_off_loses_no_other(
    tmp_path, monkeypatch
):
    row = gpu.measured(step.TINY, 'cpu', dict(precision='bfloat16', channels_last=True), 'a way')
    assert (
        row['images_per_second'] > 0
        and 0 < sum(row['kernels'].values()) <= 1
        and 'error' not in row
    )
    assert (
        'refused' in gpu.measured(step.TINY, 'cpu', dict(precision='refused'), 'another')['error']
    )
    peers = json.dumps(dict(rows=[dict(name='a', peer_name='b', ours=1, peer=2, ratio=2)]))
    says = f'import json; print(json.dumps({row!r})); open({str(tmp_path / "step.json")!r}, "w").write({peers!r})'
    stages = dict(
        ways=[(['-c', 'import time; time.sleep(9)'], 1), (['-c', says], 60)],
        bad=[(['-c', 'import os; os.mkdir(os.environ["TMPDIR"] + "/left"); 1 / 0'], 60)],
    )
    seconds = [
        sum(limit for _, limit in parts) for parts in gpu.commands('cuda', False, tmp_path).values()
    ]
    assert max(seconds) <= 600
    monkeypatch.setattr(gpu, 'commands', lambda *_: stages)
    with pytest.raises(UserError, match='ways, bad'):
        gpu.visit('cpu', True, tmp_path)
    with pytest.raises(UserError, match='well: bad'):
        gpu.visit('cpu', True, tmp_path, ['bad'])
    kept = json.loads((tmp_path / 'gpu_check.json').read_text())
    assert kept['rows'] == [row] and [stage['code'] for stage in kept['stages'].values()] == [
        'cut off after 1 s',
        1,
    ]
    page = (tmp_path / 'gpu_check.html').read_text()
    assert (
        kept['step'][0]['ratio'] == 2
        and 'a, against b' in page
        and not (tmp_path / 'temporary').exists()
    )
    assert 'a way' in page and 'cut off after 1 s' in page
    assert (tmp_path / 'bad.txt').read_text().count('ZeroDivisionError') == 1


def test_a_call_that_is_killed_loses_no_line_and_leaves_no_process(tmp_path):
    parts = [
        (['-c', "print('{}')"], 60),
        (['-c', 'import os, time; print(os.getpid()); time.sleep(60)'], 60),
    ]
    script = (
        'from pathlib import Path; from projects.benchmark import gpu; '
        f'gpu.commands = lambda *_: dict(ways={parts!r}); gpu.visit("cpu", True, Path({str(tmp_path)!r}))'
    )
    with subprocess.Popen(
        [sys.executable, '-c', script], cwd=ROOT, env={**os.environ, 'PYTHONPATH': str(ROOT)}
    ) as call:
        lines: list[str] = []
        while len(lines) < 2:
            time.sleep(0.1)
            lines = (
                (tmp_path / 'ways.txt').read_text().splitlines()
                if (tmp_path / 'ways.txt').exists()
                else []
            )
        call.kill()
    assert gpu.results(tmp_path)['rows'] == [{}]
    until = time.monotonic() + 30
    while alive(int(lines[1])) and time.monotonic() < until:
        time.sleep(0.1)
    assert not alive(int(lines[1]))


def alive(process: int) -> bool:
    status = Path(f'/proc/{process}/stat')
    return status.exists() and status.read_text().split()[2] != 'Z'


def test_what_is_carried_to_a_gpu_is_listed_less_torch_and_what_is_there():
    listed = wheels('rich==15.0.0\nscipy @ file:///x')
    assert {line.split('==')[0] for line in listed} >= {
        'mmengine',
        'mmpretrain',
        'mmcv-lite',
        'pytest',
        'addict',
    }
    assert not any(
        line.startswith(('torch', 'nvidia', 'triton', 'rich', 'scipy')) for line in listed
    )


@pytest.mark.slow
def test_the_visit_to_a_gpu_is_rehearsed_on_a_cpu(tmp_path):
    command = [
        sys.executable,
        '-m',
        'projects.benchmark.gpu_check',
        '--device',
        'cpu',
        '--quick',
        '--out',
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert len(json.loads((tmp_path / 'gpu_check.json').read_text())['stages']) == len(
        gpu.commands('cpu', True, tmp_path)
    )
