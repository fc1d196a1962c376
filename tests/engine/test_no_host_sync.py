"""Between two log lines, no step asks the device for a number: the host runs ahead and the device never starves."""

import pytest
import torch
from host_waits import HostWaits, watching
from mmengine.hooks import Hook
from torch import nn

from mmairl.engine import launch
from mmairl.network import network_of
from mmairl.registry import HOOKS

EVERY = 4  # iterations between two log lines


@HOOKS.register_module(force=True)
class StepByStep(Hook):
    """Sorts what was found by iteration, which the loader's and the other hooks' work belongs to as well."""

    priority = 'LOWEST'
    waits: HostWaits  # of the run; a config holds nothing but text and numbers

    def __init__(self) -> None:
        self.found: dict[int, list[str]] = {}

    def before_train(self, runner) -> None:
        model = network_of(runner)
        self.waits.add([*model.parameters(), *model.buffers()])
        self.waits.found.clear()

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        self.found[runner.iter + 1] = list(self.waits.found)
        self.waits.found.clear()


def steps(toy_config, monkeypatch, name: str, *hooks: dict, **options) -> dict[int, list[str]]:
    """What each of a run's iterations waited for, with all default hooks and LARS in the form that a GPU takes."""
    with watching(monkeypatch) as waits:
        monkeypatch.setattr(StepByStep, 'waits', waits, raising=False)
        cfg = toy_config(name, steps=2 * EVERY + 2, batch=16, queue=32, **options)
        cfg.model.data_preprocessor = dict(type='ViewPreprocessor', mean=(0.5,) * 3, std=(0.25,) * 3)
        cfg.default_hooks.progress = dict(type='ProgressHook', interval=EVERY)
        cfg.default_hooks.logger.interval = cfg.default_hooks.health.interval = EVERY
        cfg.default_hooks.checkpoint.interval = 1000
        cfg.custom_hooks = [*hooks, dict(type='StepByStep')]
        runner = launch.train(cfg)
    return next(hook.found for hook in runner.hooks if isinstance(hook, StepByStep))


CONFIGS = [
    'mocov2plus_r50_200e.py',
    'mocov2plus_lars_r50_200e.py',
    'byol_r50_200e.py',
    'smocov2plus_r50_200e.py',
    'mocov2_r50_200e.py',
]


@pytest.mark.parametrize('name', CONFIGS)
def test_no_step_waits_between_log_lines(toy_config, monkeypatch, name):
    found = steps(toy_config, monkeypatch, name)
    last = max(found)  # the end of the run is written down
    between = {step: waits for step, waits in found.items() if step % EVERY and step < last}
    assert len(between) >= 6 and not any(between.values()), between
    assert found[EVERY], 'a log line reads numbers; a count of none would mean that nothing is seen'


def test_no_accumulated_step_waits(toy_config, monkeypatch):
    options = {'optim_wrapper.accumulative_counts': 2}
    found = steps(toy_config, monkeypatch, CONFIGS[0], **options)
    assert not any(waits for step, waits in found.items() if step % EVERY and step < max(found)), found


def test_the_online_probe_does_not_wait(toy_config, monkeypatch):
    found = steps(toy_config, monkeypatch, CONFIGS[0], dict(type='OnlineProbeHook', classes=4, lr=0.5))
    assert not any(waits for step, waits in found.items() if step % EVERY and step < max(found)), found


@pytest.mark.parametrize(
    'wait',
    [
        lambda x: x.sum().item(),
        lambda x: float(x.sum()),
        lambda x: bool((x > 0).all()),
        lambda x: x[x > 0],
        lambda x: torch.nonzero(x),
        lambda x: x.unique(),
        lambda x: x.tolist(),
        lambda x: x.sum().cpu(),
        lambda x: x.detach().numpy(),
        lambda x: torch.zeros(3).copy_(x),
        lambda x: torch.equal(x, x),
    ],
)
def test_each_kind_of_wait_is_seen(monkeypatch, wait):
    with watching(monkeypatch) as waits:
        layer = nn.Linear(4, 3, bias=False)
        waits.add(layer.parameters())
        x = layer(torch.ones(1, 4)).detach().flatten()
        assert not waits.found
        wait(x)
    assert waits.found


def test_what_is_the_hosts_is_no_wait(monkeypatch):
    with watching(monkeypatch) as waits:
        layer = nn.Linear(4, 3)
        waits.add(layer.parameters())
        labels = torch.tensor([1, -1, 2])
        assert int(labels.max()) == 2 and labels[labels > 0].tolist() == [1, 2]
        there = torch.empty(())
        there.copy_(layer(torch.ones(1, 4)).detach().sum(), non_blocking=True)
        bool(there.numpy())
    assert not waits.found
