"""Pictures of patch features: the colors show parts of an object, and attention equals that of the network."""

import numpy as np
import pytest
import torch
from mmengine import Config
from PIL import Image

from mmairl.analysis.patch_pictures import class_attention, component_colors, patch_picture
from mmairl.config import load_config
from mmairl.evaluation.backbone import load_backbone
from mmairl.registry import MODELS

ARCH = dict(embed_dims=16, num_layers=2, num_heads=2, feedforward_channels=32)
CONFIG = """
model = dict(
    backbone=dict(type='mmpretrain.VisionTransformer', arch={arch}, img_size=32, patch_size=8),
    in_channels=16,
    data_preprocessor=dict(type='ViewPreprocessor', mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)),
)
evaluation = dict(
    train=dict(type='Shapes', count=24, size=32), test=dict(type='Shapes', split='val', count=24, size=32)
)
"""


def test_foreground_has_colors_and_background_is_black():
    generator = torch.Generator().manual_seed(0)
    maps = []
    for top in (2, 3):
        features = 0.1 * torch.randn(6, 8, 10, generator=generator)
        features[0, top : top + 3, 3:7] += 5
        # The object has a left and a right part, which differ in the second feature.
        features[1, top : top + 3, 5:7] += 1
        maps.append(features)
    for features, colors in zip(maps, component_colors(maps)):
        assert torch.equal(colors.sum(0) > 0, features[0] > 2)
        left, right = colors[0][features[1] < 0.5], colors[0][features[1] > 0.5]
        left = left[left > 0] if left.max() > 0 else left
        assert abs(left.mean() - right.mean()) > 0.3


def test_attention_weighs_the_values_of_the_last_layer():
    torch.manual_seed(0)
    vit = MODELS.build(dict(type='mmpretrain.VisionTransformer', arch=ARCH, img_size=32, patch_size=8))
    vit.eval()
    images = torch.rand(1, 3, 32, 48)
    seen = {}
    attention = vit.layers[-1].attn
    attention.register_forward_pre_hook(lambda module, inputs: seen.update(x=inputs[0]))
    heads = class_attention(vit, images)
    assert heads.shape == (2, 4, 6)
    assert heads.amax((1, 2)).tolist() == [1, 1]
    query, key, _ = attention.qkv(seen['x'])[0].view(25, 3, 2, 8).permute(1, 2, 0, 3)
    weights = torch.softmax(query[:, 0] @ key.mT / 8**0.5, -1)[range(2), range(2), 1:]
    torch.testing.assert_close(heads.flatten(1), weights / weights.amax(1, keepdim=True))


def test_images_of_two_channels_are_shown_in_gray():
    vit = MODELS.build(dict(type='mmpretrain.VisionTransformer', arch=ARCH, img_size=32, patch_size=8, in_channels=2))
    cfg = Config(dict(model=dict(data_preprocessor=dict(mean=[0.5, 0.5], std=[0.25, 0.25]))))
    vit.eval()
    picture = patch_picture({'a': vit}, [torch.rand(2, 32, 32)], cfg)
    red, green, blue = np.asarray(picture)[:32, :32].transpose(2, 0, 1)
    assert (red == green).all() and (red == blue).all() and red.std() > 0


@pytest.mark.parametrize('checkpoints', [1, 2])
def test_tool_draws_checkpoints_side_by_side(tmp_path, run_tool, monkeypatch, checkpoints):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'vit.py').write_text(CONFIG.format(arch=ARCH))
    paths = []
    for seed in range(checkpoints):
        state = load_backbone(load_config('vit.py'), None, seed=seed).state_dict()
        paths.append(tmp_path / f'network_{seed}.pth')
        torch.save(dict(state_dict={f'backbone.{key}': value for key, value in state.items()}), paths[-1])
    options = ('--config', 'vit.py', '--images', 2, '--size', 64, '--out', 'out')
    run_tool('tools/analyze.py', 'patches', *paths, *options)
    pixels = np.asarray(Image.open('out/patches.png'))
    assert pixels.shape == (2 * 68, (1 + 3 * checkpoints) * 68, 3)
