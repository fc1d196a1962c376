"""Diagnose a run whose health turned bad: try remedies, starting from its last good checkpoint, and measure their effect.

To try a remedy, a copy of the run (a fork) continues for a few hundred iterations with changed options. The control is a fork
without a change. Each fork is repeated with learning rates that differ by one billionth, so that the spread of the repeats
shows how far runs drift apart because of rounding alone. The severity of a value says how bad it is, from 0 (good) to WORST.
"""

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite, nan
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import msgspec
from mmengine.config import Config
from scipy.stats import t as student_t

from mmairl.config import by_key
from mmairl.engine.checkpoint import StoredCheckpoint
from mmairl.engine.curves import Curve, read_scalars
from mmairl.engine.fork import Fork, checkpoints_of_run
from mmairl.engine.health import QUANTITIES, Quantity, state
from mmairl.engine.hooks.monitor import SILENT
from mmairl.engine.replay import StopAt, from_scratch, rerun
from mmairl.errors import Diverged, UserError
from mmairl.io import read_yaml

# The severity of a value that is not finite, and the maximum severity. The severity of a bad value is above 1.
WORST = 2.0
# The learning rates of consecutive repeats differ by this fraction.
PERTURBATION = 1e-9
# A remedy counts as helpful if the whole confidence interval of its gain is above this value.
CLEAR = 0.05
# In the severity of a fork, the quantity that turned bad has weight 1. The mean of all others has this weight.
OTHERS = 0.1
Options = dict[str, Any]


class Usual(msgspec.Struct):
    """The usual range of a setting. If the setting is outside this range, `options` are a remedy, described by `words`."""

    key: str
    low: float
    high: float
    words: str
    options: Options


class Table(msgspec.Struct):
    """The content of doctor.yaml."""

    settings: tuple[Usual, ...]
    views: list[dict[str, Any]]


TABLE = read_yaml(Path(__file__).with_suffix('.yaml'), Table)


@dataclass(frozen=True)
class Sign:
    """The sign that a run is unhealthy: the first bad value of a health quantity, and its iteration."""

    quantity: Quantity
    iteration: int
    value: float


@dataclass(frozen=True)
class Remedy:
    """A change of a run's options that may restore its health.

    Attributes:
        words: A description for users.
        options: The changed options by dotted key.
        specific: Whether the remedy corrects an unusual setting. Other remedies reduce the symptoms of most faults, so
            they say less about the cause.
    """

    words: str
    options: Options
    specific: bool = False

    @property
    def flags(self) -> str:
        return ' '.join(f'{key}={value}' for key, value in self.options.items())


@dataclass(frozen=True)
class Outcome:
    """The effect of a remedy.

    Attributes:
        remedy: The remedy.
        gain: The severity of the control minus the severity of the fork with the remedy, averaged over the repeats. A
            remedy that moves the bad quantity from the limit of its bad range to its good range gains 1.
        low: Lower end of the 95 % confidence interval of `gain`. NaN if there is only one repeat.
        high: Upper end of that interval.
        error: Why the remedy could not be tried, or ''.
    """

    remedy: Remedy
    gain: float = -inf
    low: float = nan
    high: float = nan
    error: str = ''

    @property
    def helps(self) -> bool:
        return self.low > CLEAR


@dataclass(frozen=True)
class Trial:
    """The experiment that compares remedies.

    Attributes:
        work_dir: The work dir of the run, with at least one checkpoint, which stores the seed. Nothing is written there.
        sign: The first bad value of the run's health.
        steps: Minimum number of iterations of each fork, unless the run ends earlier.
    """

    work_dir: Path
    sign: Sign
    steps: int = 200

    @cached_property
    def start(self) -> StoredCheckpoint | None:
        """The last checkpoint before the sign, or None for the initial weights."""
        stored = checkpoints_of_run(self.work_dir)
        before = [checkpoint for checkpoint in stored if checkpoint.iteration < self.sign.iteration]
        if not before and not from_scratch(self.work_dir, stored[0]):
            raise UserError(
                f"{self.work_dir}: no checkpoint before the first bad sign, at iteration '{self.sign.iteration}', and the run "
                'did not start from scratch; train it again with a smaller default_hooks.checkpoint.interval',
                code='no-checkpoint-before',
            )
        return before[-1] if before else None

    @property
    def first(self) -> int:
        return self.start.iteration if self.start else 0

    @cached_property
    def last(self) -> int:
        """The last iteration of each fork.

        It is at least `steps / 2` iterations after the sign, so that the control shows the sign, too, unless the run ends
        earlier.
        """
        last = max(self.first + self.steps, self.sign.iteration + self.steps // 2)
        return min(last, length_of_run(self.work_dir) or last)

    def severity(self, options: Options, repeat: int) -> float:
        """Train a fork and return how bad its health is at the end.

        The result is the severity of the quantity that turned bad, plus OTHERS times the mean severity of all other quantities.
        """
        cfg = Fork(self.work_dir).config(options)
        cfg.optim_wrapper.optimizer.lr *= 1 + repeat * PERTURBATION
        cfg.merge_from_dict({'default_hooks.health.interval': max(1, self.steps // 10)})
        with tempfile.TemporaryDirectory(prefix='mmairl-doctor-') as folder:
            try:
                rerun(self.work_dir, cfg, self.start, folder, StopAt(self.last))
            except Diverged:
                return WORST * (1 + OTHERS)
            curves = read_scalars(folder)
        of_sign = 0.0
        others = []
        for quantity in _learning_quantities():
            points = zip(*_curve(curves, quantity))
            late = [
                severity(quantity, value)
                for step, value in points
                if step > self.last - self.steps / 2
            ]
            if late and quantity is self.sign.quantity:
                of_sign = mean(late)
            elif late:
                others.append(mean(late))
        return of_sign + OTHERS * (mean(others) if others else 0.0)


def length_of_run(work_dir: Path) -> int:
    """Return the number of iterations that a complete run has, or 0 if it is unknown."""
    train = Fork(work_dir).config().train_cfg
    return train.get('max_iters') or train.max_epochs * checkpoints_of_run(work_dir)[0].steps


def severity(quantity: Quantity, value: float) -> float:
    """Return how bad a value is: 0 in the good range, 1 at the limit of the bad range, and at most WORST.

    >>> share = Quantity('share', 'a share', high=0.2, ceiling=0.5)
    >>> [severity(share, value) for value in (0.1, 0.5, float('nan'))]
    [0.0, 1.0, 2.0]
    """
    if not isfinite(value):
        return WORST
    outside = max(quantity.low - value, value - quantity.high, 0.0)
    if not outside:
        return 0.0
    limit, border = (
        (quantity.low, quantity.floor)
        if value < quantity.low
        else (quantity.high, quantity.ceiling)
    )
    span = abs(limit - border) if isfinite(border) else max(abs(limit), 1.0)
    return min(outside / span, WORST)


def first_sign(work_dir: Path) -> Sign | None:
    """Return the first bad value of a run's health, or None if the run is healthy. The first steps are ignored."""
    curves = read_scalars(work_dir)
    last = max((steps[-1] for steps, _ in curves.values() if steps), default=0)
    signs = []
    for quantity in _learning_quantities():
        steps, values = _curve(curves, quantity)
        bad = [
            Sign(quantity, step, value)
            for step, value in zip(steps, values)
            if step > min(SILENT, last / 10) and state(quantity, value) == 'bad'
        ]
        signs += bad[:1]
    return min(signs, key=lambda sign: sign.iteration, default=None)


def _learning_quantities() -> Iterator[Quantity]:
    """Yield the quantities that show whether a run learns: all except the fraction of time that it waits for data."""
    return (quantity for quantity in QUANTITIES if quantity.name != 'data_share')


def _curve(curves: dict[str, Curve], quantity: Quantity) -> Curve:
    name = 'loss' if quantity.name == 'loss' else f'health_{quantity.name}'
    return curves.get(name, ([], []))


def treat(trial: Trial, repeats: int = 3) -> Iterator[Outcome]:
    """Try every remedy that applies to a run, and compare it with the control.

    Args:
        trial: The run and the sign that it is unhealthy.
        repeats: How often the control and each remedy are trained.

    Yields:
        The outcome of each remedy.
    """
    control = [trial.severity({}, repeat) for repeat in range(repeats)]
    for remedy in remedies(Fork(trial.work_dir).config()):
        try:
            treated = [trial.severity(remedy.options, repeat) for repeat in range(repeats)]
        except UserError as error:
            yield Outcome(remedy, error=str(error))
            continue
        gains = [before - after for before, after in zip(control, treated)]
        gain = mean(gains)
        half = nan
        if repeats > 1:
            half = student_t.ppf(0.975, repeats - 1) * stdev(gains) / repeats**0.5
        yield Outcome(remedy, gain, gain - half, gain + half)


def by_likelihood(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Sort outcomes by how likely it is that the remedy removes the cause, the most likely remedy first.

    A lower learning rate or clipped gradients reduce the symptoms of most faults, whatever the cause. The correction of an
    unusual setting therefore comes first if it gains at least half as much as the best remedy, and at least CLEAR.
    """
    outcomes = list(outcomes)
    best = max((outcome.gain for outcome in outcomes), default=0.0)
    threshold = max(CLEAR, best / 2)

    def likelihood(outcome: Outcome) -> tuple[bool, float]:
        return outcome.remedy.specific and outcome.gain >= threshold, outcome.gain

    return sorted(outcomes, key=likelihood, reverse=True)


def remedies(cfg: Config) -> Iterator[Remedy]:
    """Yield the remedies for a config, beginning with corrections of unusual settings."""
    values = by_key(cfg)
    for usual in TABLE.settings:
        if not usual.low <= values.get(usual.key, usual.low) <= usual.high:
            yield Remedy(usual.words, usual.options, specific=True)
    if cfg.optim_wrapper.get('dtype'):
        yield Remedy(
            'compute in float32', {'optim_wrapper.dtype': None, 'fast': {'precision': 'float32'}}
        )
    length = values.get('model.queue.length', 0)
    if length > cfg.total_batch_size:
        shorter = max(cfg.total_batch_size, length // 8)
        yield Remedy('shorten the queue', {'model.queue.length': shorter})
    rate = cfg.optim_wrapper.optimizer.lr / 10
    yield Remedy('lower the learning rate to a tenth', {'optim_wrapper.optimizer.lr': rate})
    if not cfg.optim_wrapper.get('clip_grad'):
        yield Remedy('clip gradients at norm 1', {'optim_wrapper.clip_grad': {'max_norm': 1.0}})
    for key in ('train_dataloader.dataset.views', 'model.data_preprocessor.views'):
        views = values.get(key)
        size = _size_of(views)
        if size:
            usual = [
                {'size': size, **step} if 'Crop' in step['type'] else step for step in TABLE.views
            ]
            yield Remedy('use the usual views', {key: [usual] * len(views)})


def _size_of(views: Any) -> int | None:
    """Return the crop size in a list of views, or None if no view sets a size."""
    for view in views if isinstance(views, (list, tuple)) else ():
        for step in view or ():
            if isinstance(step, dict) and isinstance(step.get('size'), int):
                return step['size']
    return None
