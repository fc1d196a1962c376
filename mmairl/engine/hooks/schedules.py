"""Schedules for numeric attributes of the model, such as the warm-up of a temperature."""

import math

from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from mmairl.errors import explained
from mmairl.models.processes import network_of
from mmairl.registry import HOOKS

# The fraction of the change that is done, by the fraction of the schedule's time.
CURVES = dict(
    linear=lambda time: time,
    cosine=lambda time: (1 - math.cos(math.pi * time)) / 2,
    step=lambda time: 0,
)


def value_at(
    share: float, start: float, end: float, until: float = 1.0, curve: str = 'linear'
) -> float:
    """Return the value at a fraction of the run. It moves from `start` to `end` and stays there from `until` on.

    >>> value_at(0.05, 0.04, 0.08, until=0.1), value_at(0.05, 1, 0, until=0.1, curve='step')
    (0.06, 1)
    """
    time = min(1.0, share / until)
    return end if time == 1 else start + (end - start) * CURVES[curve](time)


@HOOKS.register_module()
class ScheduleHook(Hook):
    """Set numeric attributes of the model before each step, as functions of the iteration.

    Args:
        values: The schedule of each attribute, by its path in the model (`'head.key_temperature'`). A schedule has the
            keys `start`, `end`, `until` (a fraction of the run) and `curve` ('linear', 'cosine' or 'step').

    Raises:
        UserError: If the model has no such attribute.
    """

    def __init__(self, values: dict[str, dict]) -> None:
        for schedule in values.values():
            value_at(0.0, **schedule)  # raises if it is invalid
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
