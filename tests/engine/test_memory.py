"""What a GPU must hold: closed forms, and a counted step against a real one; tests/sharding/ has what two processes held."""

from pathlib import Path

import pytest
import torch
from torch import nn

from mmairl.configs import load_config
from mmairl.engine import memory
from mmairl.engine.fast import make_fast
from mmairl.engine.memory import activations, build, fullest_moment, shares
from mmairl.errors import UserError
from mmairl.registry import MODELS

CONFIGS = Path(__file__).parents[2] / 'configs'


class Pair(nn.Module):
    """A student of 1000 parameters in two blocks of 600 and 400, and a teacher of 800."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Module()
        self.backbone.layers = nn.ModuleList([nn.Linear(60, 10, bias=False), nn.Linear(40, 10, bias=False)])
        self.teacher = nn.Linear(80, 10, bias=False).requires_grad_(False)


def test_what_each_strategy_divides():
    """Four bytes a parameter, eight of Adam's state; beside the quarters, what is gathered for a time."""
    found = shares(Pair(), 'AdamW', 4, accumulated=True)
    assert {name: list(parts.values()) for name, parts in found.items()} == {
        'DDP': [4000, 4000, 8000, 3200, 0, 0],
        'ZeRO-1': [1000, 1000, 2000, 800, 0, 2 * 4000 + 3200],
        'ZeRO-2': [1000, 1000, 2000, 800, 0, 4000 + 3200 + 2 * 2400],
        'ZeRO-3': [1000, 1000, 2000, 800, 0, 4 * 2400],
    }
    assert shares(Pair(), 'SGD', 4)['DDP']['optimizer'] == shares(Pair(), 'LARS', 4)['DDP']['optimizer'] == 4000
    with pytest.raises(UserError, match="how much 'Lion' keeps is not known"):
        shares(Pair(), 'Lion', 8)


@pytest.mark.parametrize(
    'name,half',
    [('mocov2plus_r50_200e.py', False), ('mocov2plus_r50_200e.py', True), ('large/mocov2plus_vit_l16_300e.py', False)],
)
def test_a_step_without_numbers_takes_what_a_real_one_takes(toy_config, name, half):
    cfg = toy_config(name, width=16, fast=dict(checkpointing=half))
    views = [torch.randn(6, 3, 32, 32) for _ in range(2)]
    measured = fullest_moment(make_fast(MODELS.build(cfg.model), cfg.fast), views, half)
    predicted = activations(build(cfg), views=2, batch=6, size=32, half=half)
    # In bfloat16 the kernels of some CPUs keep batch-norm statistics in another width than torch says.
    assert predicted == pytest.approx(measured, rel=1e-2 if half else 0)


@pytest.mark.parametrize(
    'name,millions',
    [('mocov2plus_vit_l16_300e', 303.3), ('byol_lars_r200_2x_1000e', 250.1)],
)
def test_the_large_networks_are_built_without_storage_and_as_large_as_published(name, millions):
    model = build(load_config(str(CONFIGS / f'large/{name}.py')))
    assert all(parameter.is_meta for name, parameter in model.named_parameters() if parameter.numel() > 1e6)
    assert round(sum(parameter.numel() for parameter in model.backbone.parameters()) / 1e6, 1) == millions


def test_the_command_prints_the_table(capsys, monkeypatch):
    words = ['memory', str(CONFIGS / 'demo/mocov2plus_shapes.py'), '--gpus', '2', '--size', '32']
    monkeypatch.setattr('sys.argv', words)
    memory.main()
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith('0.8 million parameters, 0.8 of the teacher; SGD; 2 views of 128 images of 32 pixels')
    rows = {line.split()[0]: line.split()[1:] for line in said[2:]}
    assert list(rows)[-3:] == ['gathered', 'activations', 'total']
    assert float(rows['activations'][0]) > 0 and len(rows['total']) == 4
