"""Every protocol by two processes, which run this file, is the protocol by one."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.dist import is_main_process

from mmairl.config import load_config
from mmairl.engine.run import register
from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.protocol import evaluate, settings_for
from mmairl.io import write_json
from mmairl.signals import stop_processes

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


def measure(folder: Path, name: str) -> dict[str, float]:
    """A few protocols, one after the other, by however many processes there are."""
    launcher, cfg, scores = 'pytorch' if 'RANK' in os.environ else 'none', load_config(str(folder / 'tiny.py')), {}
    for protocol, options in (
        ('knn', dict(ks=(5, 20))),
        ('logreg', {}),
        ('linear', dict(recipe=str(folder / 'recipe.py'), work_dir=folder / name)),
    ):
        settings = settings_for(protocol, launcher=launcher, cache=folder / f'{name}_features', **options)
        scores |= evaluate(cfg, protocol, folder / 'start.pth', settings=settings).scores
    with pytest.raises(UserError, match='holds another result'):  # the main process's error is every process's
        evaluate(cfg, 'finetune', folder / 'start.pth', settings=settings)
    return scores


def test_two_processes_score_as_one(tmp_path, run_processes):
    for name, text in (('tiny', TINY), ('recipe', RECIPE)):
        (tmp_path / f'{name}.py').write_text(text.format(root=ROOT))
    backbone = load_backbone(load_config(str(tmp_path / 'tiny.py')), None, seed=3)
    torch.save(dict(state_dict={f'backbone.{k}': v for k, v in backbone.state_dict().items()}), tmp_path / 'start.pth')
    one = measure(tmp_path, 'one')
    run_processes(2, __file__, tmp_path)
    two = json.loads((tmp_path / 'two.json').read_text())
    assert one.keys() == two.keys() and min(one.values()) > 0 and len(one) == 6
    assert two == pytest.approx(one, abs=1e-3)
    stored = sorted((tmp_path / 'one_features').glob('*.npy'))
    assert len(stored) == 2
    for path in stored:
        np.testing.assert_allclose(np.load(path), np.load(tmp_path / 'two_features' / path.name), atol=1e-5)


if __name__ == '__main__':
    register()
    found = measure(Path(sys.argv[1]), 'two')
    if is_main_process():
        write_json(Path(sys.argv[1]) / 'two.json', found)
    stop_processes()
