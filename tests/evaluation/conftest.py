"""Shared parts of evaluation tests: the config and a checkpoint of a narrow ResNet, tiny labeled data sets, and small
recipes.
"""

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
    """A data set with `count` images of noise. Each class is brighter than the one before."""

    classes = ['dark', 'mid', 'bright']

    def __init__(self, count: int = 45, seed: int = 0, views: list | None = None) -> None:
        super().__init__(views)
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(count) % 3
        noise = torch.randint(0, 60, (count, 3, 32, 32), generator=generator)
        self.images = (noise + 80 * self.labels.view(-1, 1, 1, 1)).byte()

    def raw(self, index: int) -> torch.Tensor:
        return self.images[index]


@DATASETS.register_module(force=True)
class Labeled(Noise):
    """Images of noise.

    With `several`, an image can have several classes; otherwise, its class is one of the first `classes`.
    """

    def __init__(self, count: int = 45, seed: int = 0, several: bool = False, classes: int = 3, views=None) -> None:
        super().__init__(count, seed, views)
        if several:
            self.labels = torch.nn.functional.one_hot(self.labels, 3)
            self.labels[::5, 1] = 1
            self.metric = '11-point mAP'
        else:
            self.labels = self.labels % classes


CONFIG = """
model = dict(
    type='Siamese',
    backbone=dict(type='mmpretrain.ResNet', depth=18, base_channels=8, stem_channels=8, init_cfg=dict(type='Pretrained', checkpoint='nowhere')),
    in_channels=64,
    data_preprocessor=dict(type='ViewPreprocessor', mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3)),
)
evaluation = dict(train=dict(type='Noise'), test=dict(type='Noise', count=30, seed=1), batch_size=16)
"""  # noqa: E501


@pytest.fixture(scope='session')
def digits() -> tuple[Features, Features]:
    """Return features of handwritten digits. They are centered, since cosines between positive pixels are all close to 1."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor((x - x.mean(axis=0)) / 16, dtype=torch.float32), torch.tensor(y)
    return Features(x[:1200], y[:1200]), Features(x[1200:], y[1200:])


@pytest.fixture
def small_recipe(tmp_path: Path) -> Callable[..., Config]:
    """Return a function that writes a shipped recipe to recipe.py, with few epochs, batches of 20, no progress bar and no
    plots.
    """

    def write(name: str = 'linear_shapes_20e', epochs: int = 1, **changes: object) -> Config:
        recipe = load_config(f'mmairl::_base_/recipes/{name}.py')
        recipe.total_batch_size = 20
        recipe.train_cfg.max_epochs = recipe.param_scheduler[0].end = epochs
        recipe.visualizer.vis_backends = [dict(type='LocalVisBackend')]
        recipe.default_hooks.pop('progress')
        recipe.update(changes)
        recipe.dump(str(tmp_path / 'recipe.py'))
        return recipe

    return write


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    file = tmp_path / 'tiny.py'
    file.write_text(CONFIG)
    return file


@pytest.fixture
def cfg(config_file: Path) -> Config:
    return load_config(str(config_file))


@pytest.fixture
def checkpoint(cfg: Config, tmp_path: Path) -> Path:
    """Return a checkpoint as a training run writes it. Student and teacher have different weights."""
    student, teacher = (load_backbone(cfg, seed=seed).state_dict() for seed in (1, 2))
    weights = {f'backbone.{key}': value for key, value in student.items()}
    weights |= {f'teacher.backbone.{key}': value for key, value in teacher.items()}
    weights['projector.fc.weight'] = torch.zeros(3, 3)
    file = tmp_path / 'epoch_3.pth'
    torch.save({'meta': {'epoch': 3}, 'state_dict': weights}, file)
    return file
