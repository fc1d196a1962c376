"""All routes prepare images alike: `embed`, `evaluate` on a folder and on a config, the validation loop, and by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image

import mmairl
from mmairl.data.datasets import ImageFolder
from mmairl.data.preprocess import normalize, preprocessing_of, view_of
from mmairl.engine.checkpoint import settings
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.protocol import evaluate, settings_for
from mmairl.evaluation.sets import evaluation_data
from mmairl.registry import DATASETS


def labeled_images(root: Path, channels: int | None) -> Path:
    """Write images of three classes, which differ in the brightness of one half of the image."""
    random = np.random.default_rng(0)
    for part, count in (('train', 6), ('test', 4)):
        for label in range(3):
            folder = root / part / f'c{label}'
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 160, (70, 90, channels or 3), np.uint8)
                pixels[:, : 30 * label] += 60
                if channels:
                    np.save(folder / f'{number}.npy', pixels)
                else:
                    Image.fromarray(pixels).save(folder / f'{number}.png')
    return root


def run_config(size: int, channels: int | None) -> Config:
    """Return the config of a run on crops of this size, as `pretrain` makes it."""
    number = channels or 3
    network = dict(
        type='mmpretrain.ResNet', depth=18, base_channels=8, stem_channels=8, in_channels=number
    )
    normal = dict(type='ViewPreprocessor', mean=[0.4] * number, std=[0.2] * number)
    view = [dict(type='RandomResizedCrop', size=size)]
    images = dict(type='UnlabelledFolder', root='unused', views=[view, view], channels=channels)
    cfg = Config(
        dict(
            model=dict(type='Siamese', backbone=network, data_preprocessor=normal),
            train_dataloader=dict(dataset=images),
        )
    )
    cfg.preprocessing = preprocessing_of(cfg)
    return cfg


def nearest(train: torch.Tensor, y: torch.Tensor, test: torch.Tensor) -> torch.Tensor:
    """Return the class of the most similar training image of each test image."""
    similarity = torch.nn.functional.normalize(test) @ torch.nn.functional.normalize(train).T
    return y[similarity.argmax(1)]


@pytest.mark.parametrize('size', [32, 64, 224])
@pytest.mark.parametrize('channels', [None, 5])
def test_all_routes_agree(tmp_path, size, channels):
    cfg = run_config(size, channels)
    backbone = load_backbone(cfg, seed=1)
    state = {f'backbone.{key}': value for key, value in backbone.state_dict().items()}
    checkpoint = tmp_path / 'epoch_1.pth'
    torch.save(dict(meta=dict(epoch=1, settings=settings(cfg)), state_dict=state), checkpoint)
    root = labeled_images(tmp_path / 'images', channels)

    view = [dict(type='Resize', size=size * 8 // 7), dict(type='CenterCrop', size=size)]
    features = []
    for part in ('train', 'test'):
        data = ImageFolder(root / part, views=[view], channels=channels)
        images = torch.stack([data[index]['inputs'][0] for index in range(len(data))])
        with torch.inference_mode():
            features.append(backbone(normalize(images, [0.4], [0.2]))[-1].mean((2, 3)))
        embedded, _ = mmairl.embed(checkpoint, root / part)
        torch.testing.assert_close(torch.from_numpy(embedded), features[-1], atol=1e-4, rtol=1e-4)
    y = [torch.arange(3).repeat_interleave(count) for count in (6, 4)]
    by_hand = 100 * float((nearest(features[0], y[0], features[1]) == y[1]).float().mean())

    folders = {part: dict(type='ImageFolder', root=str(root / part)) for part in ('train', 'test')}
    run = Config(dict(cfg.to_dict(), evaluation=folders))
    other = Config(dict(model=run.model.to_dict(), evaluation=folders))
    other.model.data_preprocessor.update(mean=[0.9] * (channels or 3))
    for config in (run, other):
        knn = settings_for('knn', config, ks=[1], cache=None, device='cpu')
        result = evaluate(config, 'knn', checkpoint, settings=knn)
        assert next(iter(result.scores.values())) == pytest.approx(by_hand)
    validated = DATASETS.build(evaluation_data(run).test)
    assert torch.equal(validated[5]['inputs'][0], images[5])
    assert view_of(cfg.preprocessing) == view
