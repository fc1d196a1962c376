"""Every protocol by two processes is the protocol by one, and an error of them all is one sentence."""

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


def test_an_error_of_one_process_ends_all_with_its_sentence(folder):
    """By the command that users type."""
    (folder / 'cut.pth').write_bytes((folder / 'start.pth').read_bytes()[:5000])
    done = subprocess.run(
        ['bash', ROOT / 'tools/dist_evaluate.sh', '2', 'knn', folder / 'tiny.py', folder / 'cut.pth'],
        env={**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHON': os.sys.executable},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode != 0 and 'cut.pth is truncated or damaged' in done.stderr
