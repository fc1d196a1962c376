"""All routes to a score agree: k-NN by hand, `evaluate`, its command, `embed` and `compare`."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from PIL import Image
from torchvision.transforms.v2 import functional as T

import mmairl
from mmairl.evaluation.backbone import load_backbone

CLASSES = ('red', 'blue', 'gray')
ONE = {'evaluation.settings': {'knn': {'ks': [1]}}}


@pytest.fixture
def labels(tmp_path) -> Path:
    """Return a folder train/CLASS and test/CLASS of images of several sizes."""
    random = np.random.default_rng(0)
    for part, count in (('train', 8), ('test', 5)):
        for number, name in enumerate(CLASSES):
            folder = tmp_path / 'labels' / part / name
            folder.mkdir(parents=True)
            for index in range(count):
                shape = (40 + 9 * index, 70, 3)
                pixels = random.integers(0, 160, shape, np.uint8)
                pixels[..., number] += 15
                Image.fromarray(pixels).save(folder / f'{index}.png')
    return tmp_path / 'labels'


@pytest.fixture(params=[32, 64])
def run(request, cfg, checkpoint) -> tuple[Path, int]:
    """Return a checkpoint as a run at this size writes it, and the size."""
    saved = torch.load(checkpoint)
    saved['meta']['settings'] = {
        'preprocessing.mean': '[0.4, 0.5, 0.6]',
        'preprocessing.std': '[0.2, 0.25, 0.3]',
        'preprocessing.size': str(request.param),
        'preprocessing.resize': str(request.param * 8 // 7),
    }
    torch.save(saved, checkpoint)
    return checkpoint, request.param


def by_hand(cfg, labels: Path, size: int) -> tuple[torch.Tensor, list[str], list[str]]:
    """Return features of all images, computed without data sets, and their parts and classes."""
    mean, std = (torch.tensor(cfg.model.data_preprocessor[key]) for key in ('mean', 'std'))
    files = sorted(labels.rglob('*.png'))
    rows = []
    for file in files:
        image = T.pil_to_tensor(Image.open(file))
        image = T.center_crop(T.resize(image, [size * 8 // 7], antialias=True), [size])
        rows.append((image / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1))
    with torch.no_grad():
        x = load_backbone(cfg, seed=1)(torch.stack(rows))[-1].mean((2, 3))
    return x, [file.parts[-3] for file in files], [file.parts[-2] for file in files]


def test_all_routes_agree(cfg, labels, run, run_tool, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    checkpoint, size = run
    x, parts, classes = by_hand(cfg, labels, size)
    is_train = np.array(parts) == 'train'
    unit = torch.nn.functional.normalize(x)
    nearest = (unit[~is_train] @ unit[is_train].T).argmax(1)
    names = np.array(classes)
    score = 100 * (names[is_train][nearest] == names[~is_train]).mean()

    knn = mmairl.evaluate(checkpoint, labels, ['knn'], options=ONE).results['knn']
    assert knn.scores['k-NN, k = 1'] == pytest.approx(score)
    assert knn.details['image_size'] == [size, size] and knn.details['test_images'] == 15

    features, files = mmairl.embed(checkpoint, labels)
    order = np.argsort(files)
    assert np.allclose(features[order], x, atol=2e-2), 'embed prepares images in another way'
    assert np.corrcoef(features[order].ravel(), x.flatten())[0, 1] > 0.9999

    run_tool('tools/evaluate.py', 'knn', checkpoint, '--data', labels, '--k', 1)
    [path] = checkpoint.parent.glob('*knn_labels.json')
    record = json.loads(path.read_text())
    assert record['scores'] == knn.scores


def test_one_folder_is_split_by_class(labels, run):
    checkpoint, _ = run
    first, again = (
        mmairl.evaluate(checkpoint, labels / 'train', ['knn'], options=ONE) for _ in range(2)
    )
    details = first.results['knn'].details
    assert details['train_images'] == 19 and details['test_images'] == 5
    assert first.scores == again.scores


@pytest.mark.parametrize(
    'remove, code',
    [('train/red', 'other-classes'), ('', 'no-images')],
)
def test_wrong_folders_are_errors(labels, run, remove, code):
    (labels / remove).rename(labels.parent / 'away')
    with raises_code(code):
        mmairl.evaluate(run[0], labels)


def test_one_class_is_an_error(labels, run):
    for part in ('train', 'test'):
        for name in CLASSES[1:]:
            (labels / part / name).rename(labels.parent / f'{part}_{name}')
    with raises_code('one-class'):
        mmairl.evaluate(run[0], labels)
