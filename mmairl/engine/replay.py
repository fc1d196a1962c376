"""Train parts of a finished run again, and check that the results equal the run's checkpoints.

The config and the seed determine every iteration of a run, so the results must be equal bit for bit. A stretch is the part
of a run between two checkpoints.
"""

import random
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer
from mmengine.runner import Runner
from torch import Tensor

import mmairl
from mmairl.checkpoints.load import load_checkpoint
from mmairl.engine.checkpoint import StoredCheckpoint, describe_machine, settings
from mmairl.engine.curves import read_run_config
from mmairl.engine.fork import Fork, checkpoints_of_run
from mmairl.engine.resume import config_changes
from mmairl.engine.run import complete_config, train
from mmairl.errors import UserError

# These parts of a checkpoint determine how the run continues. Other parts, such as names, times and logs, may differ.
COMPARED = ('state_dict', 'optimizer', 'param_schedulers', 'online_probe', 'random_states', 'place')
# The config of a replay may differ in these settings, because they cannot affect the weights.
IRRELEVANT = (
    'train_dataloader.num_workers',
    'train_dataloader.persistent_workers',
    'train_dataloader.pin_memory',
    'train_dataloader.prefetch_factor',
    'train_dataloader.timeout',
)
# A replay changes these settings of the run. They cannot affect the weights. Without `out_dir`, the checkpoints of a replay
# are written to the work dir of the replay.
QUIET = {
    'train_dataloader.num_workers': 0,
    'log_level': 'ERROR',
    'default_hooks.checkpoint.out_dir': None,
}
REPRODUCED = 'reproduced'
MISMATCH = 'mismatch'
NOT_COMPARABLE = 'not comparable'


@dataclass(frozen=True)
class Stretch:
    """The iterations from a stored checkpoint, or from the initial weights, to the next checkpoint."""

    start: StoredCheckpoint | None
    end: StoredCheckpoint

    @property
    def first(self) -> int:
        return self.start.iteration if self.start else 0

    def __str__(self) -> str:
        return f'iterations {self.first + 1} to {self.end.iteration}'


@dataclass(frozen=True)
class Verdict:
    """The result of a replay.

    Attributes:
        what: A description of the iterations that were replayed.
        status: REPRODUCED, MISMATCH or NOT_COMPARABLE.
        reason: The first difference, the error of the replay, or why the results cannot be compared; '' if reproduced.
    """

    what: str
    status: str
    reason: str = ''


class Reached(Exception):
    """An exception that a hook raises to end a replay."""


class StopAt(Hook):
    """End the run after iteration `last`."""

    priority = 'HIGHEST'

    def __init__(self, last: int) -> None:
        self.last = last

    def before_train_iter(self, runner: Runner, **_: object) -> None:
        if runner.iter == self.last:
            raise Reached


def stretches_of(work_dir: Path) -> list[Stretch]:
    """Return the stretches of a run that can be replayed.

    If the run started from the weights of another run, its first stretch cannot be replayed. No stretch ends at a checkpoint
    that was written after a signal, because a replay receives no signal and would not write that checkpoint.
    """
    stored = checkpoints_of_run(work_dir)
    starts: list[StoredCheckpoint | None] = [None] if from_scratch(work_dir, stored[0]) else []
    stretches = []
    for checkpoint in stored:
        if starts and not checkpoint.meta.get('after_signal'):
            stretches.append(Stretch(starts[-1], checkpoint))
        starts.append(checkpoint)
    return stretches


def from_scratch(work_dir: Path, first: StoredCheckpoint) -> bool:
    """Return whether a run started with the initial weights of its config, not with the weights of another run.

    Args:
        work_dir: The run's work dir.
        first: The first checkpoint of the run.
    """
    return not (first.meta.get('fork') or read_run_config(work_dir, 0).get('load_from'))


def choose_stretches(stretches: list[Stretch], count: int, seed: int = 0) -> list[Stretch]:
    """Return at most `count` random stretches, in the order of the run."""
    chosen = random.Random(seed).sample(stretches, min(count, len(stretches)))
    return sorted(chosen, key=lambda stretch: stretch.first)


def check_stretch(work_dir: Path, stretch: Stretch) -> Verdict:
    """Replay a stretch in a temporary folder, and compare weights, optimizer and random states bit for bit.

    If the replay fails, the status is MISMATCH. The status is NOT_COMPARABLE if another version of mmairl wrote the run, if
    the work dir has no config, or if the results differ and the run was trained on another machine or with other software.
    """
    try:
        return _check_stretch(work_dir, stretch)
    except UserError as error:
        status = NOT_COMPARABLE if error.code in ('other-code', 'no-run-config') else MISMATCH
        return Verdict(str(stretch), status, str(error))


def _check_stretch(work_dir: Path, stretch: Stretch) -> Verdict:
    version = stretch.end.meta.get('mmairl_version')
    if version != mmairl.__version__:
        reason = f'mmairl: {version}, now {mmairl.__version__}'
        return Verdict(str(stretch), NOT_COMPARABLE, reason)
    machine = stretch.end.meta.get('machine') or {}
    torch.set_num_threads(machine.get('threads') or torch.get_num_threads())
    cfg, differences = config_of_stretch(work_dir, stretch)
    if differences:
        reason = f'the config and the checkpoint differ in {differences[0]}'
        return Verdict(str(stretch), MISMATCH, reason)
    with tempfile.TemporaryDirectory(prefix='mmairl-replay-') as folder:
        rerun(work_dir, cfg, stretch.start, folder, StopAt(stretch.end.iteration))
        unequal = differences_of(stretch.end.path, Path(folder) / stretch.end.path.name)
    if not unequal:
        return Verdict(str(stretch), REPRODUCED)
    for key, value in describe_machine().items():
        if machine.get(key) != value:
            reason = f'{key}: {machine.get(key)}, now {value}'
            return Verdict(str(stretch), NOT_COMPARABLE, reason)
    others = f' and {len(unequal) - 1} other values' if unequal[1:] else ''
    return Verdict(str(stretch), MISMATCH, unequal[0] + others)


def rerun(
    work_dir: Path, cfg: Config, start: StoredCheckpoint | None, folder: str, stop: Hook
) -> None:
    """Repeat a part of a run in another folder, until the hook `stop` raises Reached.

    Training starts from the checkpoint `start` of the run, or from the initial weights if `start` is None.
    """
    cfg.merge_from_dict(QUIET)
    cfg.work_dir = folder
    if start is None:
        cfg.randomness.seed = checkpoints_of_run(work_dir)[0].meta['seed']
    with suppress(Reached):
        train(cfg, fork=start and Fork(work_dir, path=start.path), hooks=[stop])


def config_of_stretch(work_dir: Path, stretch: Stretch) -> tuple[Config, list[str]]:
    """Return the config with which a run trained a stretch, and its differences from the settings in the checkpoint.

    A run that was resumed has one config per start. The result is the latest config that agrees with the checkpoint at the
    end of the stretch. If no config agrees, the result is the first config with its differences.
    """
    fork = Fork(work_dir)
    starts = len(list(work_dir.glob('*/vis_data/config.py')))
    for start in reversed(range(max(1, starts))):
        cfg = fork.config(start=start)
        completed = Config(cfg.to_dict())
        complete_config(completed, 'none')
        changes = config_changes(stretch.end.meta.get('settings'), settings(completed))
        differences = [
            f"'{key}' ({before}, {now})"
            for key, before, now, _ in changes
            if key not in (*IRRELEVANT, 'randomness.seed', 'train_dataloader.batch_size')
        ]
        if not differences:
            break
    return cfg, differences


def differences_of(stored: Path, replayed: Path) -> list[str]:
    """List the differences of two training checkpoints in the parts that determine how a run continues."""
    original = load_checkpoint(stored)
    repeated = load_checkpoint(replayed)
    differences = [
        f'meta.{key}'
        for key in ('iter', 'epoch', 'seed')
        if original['meta'].get(key) != repeated['meta'].get(key)
    ]
    for part in COMPARED:
        differences += differing(original.get(part), repeated.get(part), part)
    return differences


def differing(expected: Any, actual: Any, name: str) -> list[str]:
    """List the dotted names of the parts in which two nested values differ in type, shape or bits.

    0.0 differs from -0.0, and a NaN equals a NaN with the same bits.
    """
    if type(expected) is not type(actual):
        return [name]
    expected = _by_key(expected)
    actual = _by_key(actual)
    if not isinstance(expected, dict):
        return [] if _bits(expected) == _bits(actual) else [name]
    if expected.keys() != actual.keys():
        return [name]
    return [
        place
        for key in expected
        for place in differing(expected[key], actual[key], f'{name}.{key}')
    ]


def _by_key(value: Any) -> Any:
    """Return a list, a tuple or a HistoryBuffer as a dictionary. Return any other value unchanged."""
    if isinstance(value, HistoryBuffer):
        return vars(value)
    return dict(enumerate(value)) if isinstance(value, (list, tuple)) else value


def _bits(value: Any) -> tuple:
    if isinstance(value, Tensor):
        content = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return value.dtype, value.shape, content
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    return (repr(value),)
