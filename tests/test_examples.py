"""The files that the how-to guides show train a model, and their parts work."""

import re
import sys
from pathlib import Path

import pytest
import torch
from mmengine.config import ConfigDict
from torch import nn

from mmairl.config import load_config
from mmairl.engine.run import train
from mmairl.registry import MODELS, TRANSFORMS

GUIDES = Path(__file__).parents[1] / 'docs/how-to'
FILE = re.compile(r'^```python\n# (\w+\.py)\n(.*?)^```$', re.MULTILINE | re.DOTALL)
CONFIGS = {
    'bring_your_own_model': ['mae', 'rotnet_toy'],
    'add_your_own': ['slow_teacher', 'byol_huber', 'simsiam', 'posterized'],
    'add_data_and_protocols': ['on_stripes', 'on_means'],
}
TINY = {
    'train_dataloader.dataset.count': 64,
    'total_batch_size': 32,
    'train_cfg.max_epochs': 1,
    'default_hooks.checkpoint.interval': 1,
}
RUNS = [(page, name) for page, names in CONFIGS.items() for name in names]


@pytest.fixture
def write_files(tmp_path, monkeypatch):
    """Return a function that writes the files of a guide into the current folder, from which modules are imported."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(page: str) -> None:
        for name, text in FILE.findall((GUIDES / f'{page}.md').read_text()):
            Path(name).write_text(text)

    yield write
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], '__file__', None) == str(tmp_path / f'{name}.py'):
            del sys.modules[name]


@pytest.mark.parametrize('page, name', RUNS, ids=[name for _, name in RUNS])
def test_config_of_a_guide_trains(page, name, write_files):
    write_files(page)
    cfg = load_config(f'{name}.py', TINY)
    if cfg.model.get('queue'):
        cfg.model.queue.length = 32
    cfg.work_dir = 'run'
    train(cfg)
    assert Path('run/epoch_1.pth').is_file()


def test_teacher_of_the_guide_follows_the_student(write_files):
    write_files('bring_your_own_model')
    from teacher import Teacher

    backbone = dict(type='mmpretrain.ResNet', depth=18, stem_channels=4, base_channels=4)
    student = nn.Module()
    student.backbone = MODELS.build(backbone)
    teacher = Teacher(backbone)
    pairs = [*zip(teacher.backbone.parameters(), student.backbone.parameters())]
    expected = [0.9 * mine + 0.1 * theirs for mine, theirs in pairs]
    teacher.follow(student, 0.9)
    for (mine, _), value in zip(pairs, expected):
        torch.testing.assert_close(mine.data, value.data)
        assert not mine.requires_grad


def test_foreign_transform_of_the_guide_changes_an_image():
    page = (GUIDES / 'bring_your_own_model.md').read_text()
    [text] = re.findall(r"`(dict\(type='ForeignTransform'.*\))`", page)
    transform = TRANSFORMS.build(ConfigDict(eval(text)))
    image = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8)
    changed = transform(image)
    assert changed.shape == image.shape
    assert not torch.equal(changed, image)
