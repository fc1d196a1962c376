"""The config and a checkpoint of a narrow ResNet, tiny labeled data sets, and small recipes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from mmengine import Config
from sklearn.datasets import load_digits

from mmairl.config import load_config
from mmairl.data.datasets import ViewDataset
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.features import Features
from mmairl.registry import DATASETS


@DATASETS.register_module(force=True)
class Noise(ViewDataset):
    """A data set with `count` images of noise. Each class is brighter than the one before.

    With `several`, an image can have several classes.
    """

    classes = ['dark', 'mid', 'bright']

    def __init__(
        self, count: int = 45, seed: int = 0, several: bool = False, split: str = '', views=None
    ) -> None:
        super().__init__(views)
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(count) % 3
        noise = torch.randint(0, 60, (count, 3, 32, 32), generator=generator)
        self.images = (noise + 80 * self.labels.view(-1, 1, 1, 1)).byte()
        if several:
            self.labels = torch.nn.functional.one_hot(self.labels, 3)
            self.labels[::5, 1] = 1
            self.metric = '11-point mAP'

    def raw(self, index: int) -> torch.Tensor:
        return self.images[index]


@pytest.fixture(scope='session')
def digits() -> tuple[Features, Features]:
    """Return features of handwritten digits, centered, so that cosines differ."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor((x - x.mean(axis=0)) / 16, dtype=torch.float32), torch.tensor(y)
    return Features(x[:1200], y[:1200]), Features(x[1200:], y[1200:])


@pytest.fixture
def small_recipe(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a short version of a shipped recipe, and returns its path."""

    def write(name: str = 'linear_shapes_20e', epochs: int = 1, **changes: object) -> str:
        recipe = load_config(f'mmairl::_base_/recipes/{name}.py')
        recipe.total_batch_size = 20
        recipe.train_cfg.max_epochs = recipe.param_scheduler[0].end = epochs
        recipe.visualizer.vis_backends = [dict(type='LocalVisBackend')]
        recipe.default_hooks.checkpoint = dict(type='ExactCheckpointHook', interval=1)
        recipe.update(changes)
        recipe.dump(str(tmp_path / 'recipe.py'))
        return str(tmp_path / 'recipe.py')

    return write


@pytest.fixture
def cfg() -> Config:
    network = dict(type='mmpretrain.ResNet', depth=18, base_channels=8, stem_channels=8)
    normal = dict(type='ViewPreprocessor', mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    return Config(
        dict(
            model=dict(type='Siamese', backbone=network, data_preprocessor=normal),
            evaluation=dict(
                train=dict(type='Noise'), test=dict(type='Noise', count=30, seed=1), batch_size=16
            ),
        )
    )


@pytest.fixture
def checkpoint(cfg: Config, tmp_path: Path) -> Path:
    """Return a checkpoint whose student and teacher have different weights."""
    weights = {}
    for prefix, seed in (('backbone.', 1), ('teacher.backbone.', 2)):
        state = load_backbone(cfg, seed=seed).state_dict()
        weights |= {f'{prefix}{key}': value for key, value in state.items()}
    file = tmp_path / 'epoch_3.pth'
    torch.save({'meta': {'epoch': 3}, 'state_dict': weights}, file)
    return file
