"""A long run does not grow; the long form is python -m projects.faults long."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mmengine.hooks import Hook

from mmairl.engine import history
from mmairl.engine.launch import register
from mmairl.registry import HOOKS
from projects.faults import long_run
from projects.faults.long_run import FAULTS, KIB_PER_1000_STEPS, Sample, judge

STEPS = 600


@HOOKS.register_module(force=True)
class KeepEverything(Hook):
    """A leak: 16 KiB every step and a file every fifth."""

    def __init__(self) -> None:
        self.kept = []

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        self.kept.append(torch.ones(16 * 1024, dtype=torch.uint8))
        if runner.iter % 5 == 0:
            self.kept.append(open('/dev/null'))  # noqa: SIM115


def run(folder: Path, hooks: list[str]) -> dict:
    """A short long run in a fresh process: in one that has freed much, a leak fills what was freed and does not show."""
    done = subprocess.run(
        [sys.executable, __file__, str(folder), *hooks],
        env={**os.environ, 'PYTHONPATH': str(Path(__file__).parents[3]), 'OMP_NUM_THREADS': '1'},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / 'found.json').read_text())


def main() -> None:
    folder, hooks, config = Path(sys.argv[1]), sys.argv[2:], long_run.config
    history.KEPT = 100  # values of each logged quantity, so that they are full after a fifth

    def with_hooks(*args):
        cfg = config(*args)
        cfg.custom_hooks += [dict(type=name) for name in hooks]
        return cfg

    long_run.config = with_hooks
    register()
    (folder / 'found.json').write_text(json.dumps(long_run.long_run(STEPS, 0, folder)))


@pytest.mark.slow
def test_a_run_keeps_its_memory_its_files_its_threads_and_its_workers(tmp_path):
    found = run(tmp_path, [])
    assert found['steps'] == STEPS and found['data workers'] == 1
    assert {name: found[name] for name in FAULTS} == dict.fromkeys(FAULTS, 0)


@pytest.mark.slow
def test_a_hook_that_keeps_a_tensor_a_step_and_opens_files_is_found(tmp_path):
    found = run(tmp_path, ['KeepEverything'])
    assert found['memory grows'] and found['KiB gained per 1000 steps'] > 12_000 and found['files grow']


def samples(kib_per_step: float, count: int = 20, every: int = 1000) -> list[Sample]:
    steps = range(every, every * count + 1, every)
    return [Sample(step, int(10_000 + kib_per_step * step), 20, 5, 1) for step in steps]


@pytest.mark.parametrize('kib_per_step,grows', [(0, 0), (KIB_PER_1000_STEPS / 1000, 0), (0.5, 1)])
def test_a_scalar_kept_a_step_is_too_much_in_the_long_form(kib_per_step, grows):
    found = judge(samples(kib_per_step), left_over=0)
    assert found['KiB gained per 1000 steps'] == pytest.approx(1000 * kib_per_step, abs=1)
    assert found['memory grows'] == grows


@pytest.mark.parametrize('what', ['files', 'threads', 'workers'])
def test_a_count_that_rises_is_found_and_one_that_comes_and_goes_is_not(what):
    for each, grows in ((lambda place: place % 3, 0), (lambda place: place, 1)):
        made = samples(0)
        for place, one in enumerate(made):
            setattr(one, what, 20 + each(place))
        assert judge(made, left_over=0)[f'{what} grow'] == grows


if __name__ == '__main__':
    main()
