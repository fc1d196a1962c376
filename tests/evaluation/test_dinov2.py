"""A small random network with timm's DINOv2 architecture, in the protocols that use patch features or several layers."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import timm
import torch

from mmairl.analysis.patch_pictures import GAP, patch_picture
from mmairl.checkpoints.read import read_backbone
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.protocol import evaluate, settings_for

DENSE = dict(layers=(0, -1), size=56, crop=42, epochs=1, batch=4)


@pytest.fixture(scope='module')
def dinov2(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    how = dict(img_size=28, embed_dim=128, depth=2, num_heads=2)
    network = timm.create_model('vit_small_patch14_reg4_dinov2', **how)
    path = tmp_path_factory.mktemp('dinov2') / 'vit.pth'
    torch.save(network.state_dict(), path)
    return path


@pytest.fixture
def vit_cfg(cfg, dinov2):
    cfg.model.backbone = read_backbone(dinov2).network
    cfg.model.in_channels = 128
    return cfg


@pytest.mark.skipif(not find_spec('mmseg'), reason='requires mmseg')
@pytest.mark.parametrize('protocol, target', [('segment', 'classes'), ('depth_probe', 'depth')])
def test_dense_probe_accepts_dinov2(vit_cfg, dinov2, protocol, target):
    for seed, part in enumerate(('train', 'test')):
        vit_cfg.evaluation[part] = dict(type='Scenes', count=6, size=64, seed=seed, target=target)
    result = evaluate(vit_cfg, protocol, dinov2, settings=settings_for(protocol, **DENSE))
    assert all(torch.tensor(list(result.scores.values())).isfinite())
    # Each of the 9 cells of an image has 2 * 128 features and 16 points of the target, all in float16.
    stored = 6 * 9 * (2 * 128 + 16) * 2
    assert result.details['stored_bytes'] == stored


def test_retrieval_accepts_dinov2(vit_cfg, dinov2):
    result = evaluate(vit_cfg, 'retrieval', dinov2)
    assert 0 < result.scores['retrieval, mAP'] <= 100
    assert result.details['dimensions'] == 128


def test_linear_with_robustness_sets_accepts_dinov2(vit_cfg, dinov2, tmp_path, small_recipe):
    recipe = small_recipe('linear_dinov2_10e')
    recipe.model.layers = 2
    recipe.dump(str(tmp_path / 'recipe.py'))
    vit_cfg.evaluation.robustness = dict(more=dict(type='Noise', count=30, seed=2))
    settings = settings_for('linear', recipe=str(tmp_path / 'recipe.py'), work_dir=tmp_path / 'run')
    result = evaluate(vit_cfg, 'linear', dinov2, settings=settings)
    assert list(result.scores) == ['linear, top-1', 'linear, top-1 on more']


def test_large_and_oblong_images_are_drawn(vit_cfg, dinov2):
    images = [torch.rand(3, 224, 320), torch.rand(3, 320, 224)]
    picture = patch_picture({'vit': load_backbone(vit_cfg, dinov2)}, images, vit_cfg)
    # Each row shows the image, its principal components and the attention of two heads.
    pictures = 4
    assert picture.size == (pictures * (320 + GAP), 224 + 320 + 2 * GAP)
