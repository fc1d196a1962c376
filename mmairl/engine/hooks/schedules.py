"""Schedules for numeric attributes of the model, such as the warm-up of a temperature."""

import math
from collections.abc import Iterable

from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from mmairl.errors import explained
from mmairl.models.processes import network_of
from mmairl.registry import HOOKS

# Each function takes the fraction of a schedule's time that has passed, and returns the completed fraction of the change.
CURVES = dict(
    linear=lambda time: time,
    cosine=lambda time: (1 - math.cos(math.pi * time)) / 2,
    step=lambda time: 0,
)


def value_at(
    share: float, start: float, end: float, until: float = 1.0, curve: str = 'linear'
) -> float:
    """Return a scheduled value, given the fraction of the run that has passed (`share`).

    The value moves from `start` to `end`. It reaches `end` at the fraction `until` of the run and stays there.

    >>> value_at(0.05, 0.04, 0.08, until=0.1), value_at(0.05, 1, 0, until=0.1, curve='step')
    (0.06, 1)
    """
    time = min(1.0, share / until)
    return end if time == 1 else start + (end - start) * CURVES[curve](time)


def freeze_prototypes(hooks: Iterable[dict], share: float) -> None:
    """Make the hooks of a config keep prototypes frozen for this fraction of a run."""
    for hook in hooks:
        schedules = hook.get('values', {})
        for place in schedules:
            if place.endswith('.frozen'):
                schedules[place]['until'] = share


@HOOKS.register_module()
class ScheduleHook(Hook):
    """Before each step, set numeric attributes of the model to values that follow a schedule.

    Args:
        values: A dictionary from the path of an attribute, such as `'head.key_temperature'`, to its schedule. A schedule has
            the keys `start`, `end`, `until` (a fraction of the run; default: 1) and `curve` ('linear', 'cosine' or 'step';
            default: 'linear').

    Raises:
        UserError: If the model has no such attribute.
    """

    def __init__(self, values: dict[str, dict]) -> None:
        for schedule in values.values():
            # This call raises an error if the schedule is invalid.
            value_at(0.0, **schedule)
        self.values = values

    def before_train(self, runner: Runner) -> None:
        self.parts: dict[str, tuple[nn.Module, str]] = {}
        for place in self.values:
            part, _, name = place.rpartition('.')
            what = f"ScheduleHook.values: the model has no such attribute ('{place}')"
            with explained(what, 'correct the path', (AttributeError,), code='no-such-number'):
                module = network_of(runner).get_submodule(part)
                getattr(module, name)
            self.parts[place] = module, name

    def before_train_iter(self, runner: Runner, **_: object) -> None:
        share = runner.iter / runner.max_iters
        for place, (module, name) in self.parts.items():
            setattr(module, name, value_at(share, **self.values[place]))
