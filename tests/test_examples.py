"""The files that the how-to guides show train a model, and their parts work."""

import re
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from mmairl.config import load_config
from mmairl.data.preprocess import normalize
from mmairl.data.shapes import Shapes
from mmairl.engine.run import train
from mmairl.evaluation.protocol import evaluate, settings_for
from mmairl.evaluation.sets import evaluation_sets
from mmairl.registry import DATASETS, MODELS, PROTOCOLS, TRANSFORMS

GUIDES = Path(__file__).parents[1] / 'docs/how-to'
FILE = re.compile(r'^```python\n# (\w+\.py)\n(.*?)^```$', re.MULTILINE | re.DOTALL)
CONFIGS = {
    'bring_your_own_model': ['mae', 'rotnet_toy', 'rotnet_distorted'],
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
    for registry in (DATASETS, MODELS, PROTOCOLS):
        monkeypatch.setattr(registry, '_module_dict', dict(registry.module_dict))
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
    if 'albumentations' in Path(f'{name}.py').read_text():
        pytest.importorskip('albumentations', reason='albumentations is not installed')
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


def test_foreign_transform_of_the_guide_changes_an_image(write_files):
    write_files('bring_your_own_model')
    view = load_config('rotnet_distorted.py').view
    transform = TRANSFORMS.build(view[1])
    image = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8)
    changed = transform(image)
    assert changed.shape == image.shape
    assert not torch.equal(changed, image)


def test_protocol_of_the_guide_scores_as_by_hand(write_files):
    write_files('add_data_and_protocols')
    counts = {'evaluation.train.count': 60, 'evaluation.test.count': 36}
    cfg = load_config('on_means.py', counts)
    scores = evaluate(cfg, 'ncm', 'pixels', settings=settings_for('ncm', cfg, center=False)).scores
    sets = [evaluation_sets(cfg, 'ncm')[part][1] for part in ('train', 'test')]
    normal = cfg.model.data_preprocessor
    (x, y), (queries, truth) = (
        (
            torch.stack(
                [normalize(data[i]['inputs'][0], normal.mean, normal.std) for i in range(len(data))]
            ).flatten(1),
            data.labels,
        )
        for data in sets
    )
    means = [x[y == label].mean(0) for label in range(12)]
    right = 0
    for query, label in zip(queries, truth):
        cosines = [torch.cosine_similarity(query, mean, dim=0) for mean in means]
        right += cosines.index(max(cosines)) == int(label)
    assert scores == {'nearest class mean': pytest.approx(100 * right / 36)}


def test_analysis_of_the_guide_runs(write_files, capsys):
    write_files('add_data_and_protocols')
    Path('images').mkdir()
    shapes = Shapes(count=24)
    for index in range(24):
        Image.fromarray(shapes.raw(index).permute(1, 2, 0).numpy()).save(f'images/{index}.png')
    exec(Path('rank.py').read_text(), {})
    assert '24 images' in capsys.readouterr().out
