"""Find out why a run went bad: fork remedies from its last good checkpoint and compare their health.

Each remedy trains for a few hundred iterations from the same state as a control without a change. Repeats differ in the
ninth digit of the learning rate, which measures how far runs drift apart for no reason.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from mmengine.config import Config
from scipy.stats import t as student_t

from mmairl.engine.curves import Curve, read_scalars
from mmairl.engine.fork import Fork
from mmairl.engine.health import QUANTITIES, Quantity, state
from mmairl.engine.hooks.monitor import SILENT
from mmairl.engine.replay import QUIET, Kept, Reached, StopAt, kept_checkpoints
from mmairl.engine.run import train
from mmairl.errors import Diverged, UserError

WORST = 2.0  # severity of a value that is not finite; 1 is where a value becomes bad
PERTURBATION = 1e-9
CLEAR = 0.05  # least gain that helps
OTHERS = 0.1  # weight of the quantities other than the bad one
Options = dict[str, Any]


@dataclass(frozen=True)
class Sign:
    """The first bad sign of a run."""

    quantity: Quantity
    iteration: int
    value: float


@dataclass(frozen=True)
class Outcome:
    """What a remedy does.

    Attributes:
        remedy: The remedy in words.
        options: The changed options.
        gain: How much less severe the bad sign is than without a change; 1 is from bad to good.
        low: Lower end of the 95 % interval of `gain`; NaN for a single repeat.
        high: Upper end.
        error: Why the remedy could not be tried.
    """

    remedy: str
    options: Options
    gain: float = -inf
    low: float = float('nan')
    high: float = float('nan')
    error: str = ''

    @property
    def helps(self) -> bool:
        return self.low > CLEAR


def severity(quantity: Quantity, value: float) -> float:
    """Return how bad a value is: 0 in the good range, 1 where it becomes bad, at most WORST.

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
    """Return the first bad sign of a run after its first steps, or None if it is healthy."""
    curves = read_scalars(work_dir)
    last = max((steps[-1] for steps, _ in curves.values() if steps), default=0)
    signs = []
    for quantity in _judged():
        steps, values = _curve(curves, quantity)
        bad = [
            Sign(quantity, step, value)
            for step, value in zip(steps, values)
            if step > min(SILENT, last / 10) and state(quantity, value) == 'bad'
        ]
        signs += bad[:1]
    return min(signs, key=lambda sign: sign.iteration, default=None)


def _judged() -> Iterator[Quantity]:
    """Yield the quantities that tell whether a run learns. Waiting for data is not among them."""
    return (quantity for quantity in QUANTITIES if quantity.name != 'data_share')


def _curve(curves: dict[str, Curve], quantity: Quantity) -> Curve:
    name = 'loss' if quantity.name == 'loss' else f'health_{quantity.name}'
    return curves.get(name, ([], []))


def treat(work_dir: Path, sign: Sign, steps: int = 200, repeats: int = 3) -> Iterator[Outcome]:
    """Fork every remedy that applies to a run, and compare it with a control.

    Args:
        work_dir: The work dir of the run. Nothing is written there.
        sign: Its first bad sign.
        steps: Iterations of each fork.
        repeats: Forks of each remedy.

    Yields:
        The outcome of each remedy.
    """
    start = last_good(work_dir, sign)
    control = [
        _severity_after(work_dir, sign, start, {}, steps, repeat) for repeat in range(repeats)
    ]
    for name, options in remedies(Fork(work_dir).config()):
        try:
            treated = [
                _severity_after(work_dir, sign, start, options, steps, repeat)
                for repeat in range(repeats)
            ]
        except UserError as error:
            yield Outcome(name, options, error=str(error))
            continue
        gains = [before - after for before, after in zip(control, treated)]
        gain = mean(gains)
        half = float('nan')
        if repeats > 1:
            half = student_t.ppf(0.975, repeats - 1) * stdev(gains) / repeats**0.5
        yield Outcome(name, options, gain, gain - half, gain + half)


def last_good(work_dir: Path, sign: Sign) -> Kept | None:
    """Return the last checkpoint before a bad sign, or None for the initial weights."""
    before = [kept for kept in kept_checkpoints(work_dir) if kept.iteration < sign.iteration]
    return before[-1] if before else None


def _severity_after(
    work_dir: Path, sign: Sign, start: Kept | None, options: Options, steps: int, repeat: int
) -> float:
    """Return the severity of the bad sign in the second half of a fork, plus a tenth of the mean of other quantities."""
    cfg = Fork(work_dir).config(options)
    cfg.optim_wrapper.optimizer.lr *= 1 + repeat * PERTURBATION
    cfg.merge_from_dict({**QUIET, 'default_hooks.health.interval': max(1, steps // 10)})
    first = start.iteration if start else 0
    with tempfile.TemporaryDirectory(prefix='mmairl-doctor-') as folder:
        cfg.work_dir = f'{folder}/run'
        fork = start and Fork(work_dir, path=start.path)
        if start is None:
            cfg.randomness.seed = kept_checkpoints(work_dir)[0].meta['seed']
        try:
            with suppress(Reached):
                train(cfg, fork=fork, hooks=[StopAt(first + steps)])
        except Diverged:
            return WORST * (1 + OTHERS)
        curves = read_scalars(cfg.work_dir)
    own = 0.0
    others = []
    for quantity in _judged():
        points = zip(*_curve(curves, quantity))
        late = [severity(quantity, value) for step, value in points if step > first + steps / 2]
        if quantity is sign.quantity:
            own = mean(late) if late else 0.0
        elif late:
            others.append(mean(late))
    return own + OTHERS * (mean(others) if others else 0.0)


def remedies(cfg: Config) -> Iterator[tuple[str, Options]]:
    """Yield the remedies for a config, in words and as options. Those for unusual settings come first."""
    optimizer = cfg.optim_wrapper.optimizer
    hook = cfg.get('default_hooks', {}).get('momentum') or {}
    head = cfg.model.get('head') or {}
    queue = cfg.model.get('queue') or {}
    if not 0.9 <= hook.get('base', 0.99) < 1:
        yield (
            'average the teacher over more steps',
            {
                'default_hooks.momentum.base': 0.99,
                'default_hooks.momentum.schedule': 'cosine',
            },
        )
    if not 0.03 <= head.get('temperature', 0.2) <= 1:
        yield 'use a usual temperature', {'model.head.temperature': 0.2}
    if optimizer.get('weight_decay', 0) > 0.1:
        yield 'lower the weight decay', {'optim_wrapper.optimizer.weight_decay': 1e-4}
    if optimizer.get('momentum', 0.9) > 0.95:
        yield "lower the optimizer's momentum", {'optim_wrapper.optimizer.momentum': 0.9}
    if cfg.optim_wrapper.get('dtype'):
        yield 'compute in float32', {'optim_wrapper.dtype': None, 'fast': {'precision': 'float32'}}
    if queue.get('length', 0) > cfg.total_batch_size:
        yield (
            'shorten the queue',
            {'model.queue.length': max(cfg.total_batch_size, queue.length // 8)},
        )
    yield 'lower the learning rate to a tenth', {'optim_wrapper.optimizer.lr': optimizer.lr / 10}
    if not cfg.optim_wrapper.get('clip_grad'):
        yield 'clip gradients at norm 1', {'optim_wrapper.clip_grad': {'max_norm': 1.0}}
    for key, views in (
        ('train_dataloader.dataset.views', cfg.train_dataloader.dataset.get('views')),
        ('model.data_preprocessor.views', (cfg.model.get('data_preprocessor') or {}).get('views')),
    ):
        size = _size_of(views)
        if size:
            yield 'use the usual views', {key: [_usual_views(size)] * len(views)}


def _size_of(views: Callable | list | str | None) -> int | None:
    """Return the size to which a list of views crops, or None."""
    for view in views if isinstance(views, (list, tuple)) else ():
        for step in view or ():
            if isinstance(step, dict) and isinstance(step.get('size'), int):
                return step['size']
    return None


def _usual_views(size: int) -> list[dict[str, Any]]:
    return [
        dict(type='RandomResizedCrop', size=size, scale=(0.2, 1.0)),
        dict(type='ColorJitter', brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, p=0.8),
        dict(type='RandomGrayscale', p=0.2),
        dict(type='RandomFlip', p=0.5),
    ]
