"""Every protocol by two processes is the protocol by one."""

import json
import os
import subprocess
from pathlib import Path

import measuring
import pytest
import torch

from mmairl.configs import load_config
from mmairl.evaluation.backbone import load_backbone

ROOT = Path(__file__).parents[2]
TINY = """
_base_ = '{root}/configs/evaluation/shapes_r18.py'
model = dict(backbone=dict(base_channels=8, stem_channels=8), in_channels=64)
evaluation = dict(train=dict(count=101, size=24), test=dict(count=51, size=24), batch_size=16)
"""
RECIPE = """
_base_ = '{root}/configs/_base_/recipes/linear_shapes_20e.py'
train_view = [dict(type='Resize', size=24), dict(type='CenterCrop', size=24)]  # nothing at random
total_batch_size = 20
train_cfg = dict(max_epochs=2)
param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=True, begin=0, end=2, convert_to_iter_based=True, eta_min=0.0)]
randomness = dict(seed=0)
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    for name, text in (('tiny', TINY), ('recipe', RECIPE)):
        (tmp_path / f'{name}.py').write_text(text.format(root=ROOT))
    backbone = load_backbone(load_config(str(tmp_path / 'tiny.py')), None, seed=3)
    torch.save(dict(state_dict={f'backbone.{k}': v for k, v in backbone.state_dict().items()}), tmp_path / 'start.pth')
    return tmp_path


def test_two_processes_score_as_one(folder, run_processes):
    one = measuring.measure(folder, 'one')
    run_processes(2, measuring.__file__, folder, 'two')
    two = json.loads((folder / 'two.json').read_text())
    assert one.keys() == two.keys() and min(one.values()) > 0 and len(one) == 6
    assert two == pytest.approx(one, abs=1e-3)


def test_the_script_starts_the_tool_as_often_as_it_is_told():
    command = ['bash', ROOT / 'tools/dist_evaluate.sh', '2', 'knn', 'a.py', 'b.pth']
    said = subprocess.run(command, env={**os.environ, 'PYTHON': 'echo'}, capture_output=True, text=True, check=True)
    assert said.stdout.startswith('-m mmairl.engine.torchrun --nproc_per_node=2 ')
    assert said.stdout.endswith('/tools/evaluate.py knn a.py b.pth --launcher pytorch\n')
