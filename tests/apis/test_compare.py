"""`mmairl.evaluate` and `mmairl.compare` on labeled folders, with scores that equal those by hand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from PIL import Image

import mmairl
from mmairl.apis.evaluate import labeled_config
from mmairl.apis.sample import PATH
from mmairl.checkpoints.read import read_backbone
from mmairl.cli.main import main
from mmairl.data.preprocess import preprocessing_code
from mmairl.evaluation.metrics import interval
from mmairl.io import read_json
from mmairl.registry import MODELS

CLASSES = ('dark', 'light', 'other')


def checkpoint(folder: Path, seed: int, size: int = 32, channels: int = 3) -> Path:
    """Write a narrow network that states how its images are prepared, as every run does."""
    torch.manual_seed(seed)
    kind = dict(type='mmpretrain.ResNet', depth=18, base_channels=8, in_channels=channels)
    state = {f'backbone.{key}': value for key, value in MODELS.build(kind).state_dict().items()}
    images = dict(size=size, resize=size * 8 // 7, mean=[0.4] * channels, std=[0.3] * channels)
    images['channels'] = channels if channels != 3 else None
    settings = {f'preprocessing.{key}': str(value) for key, value in images.items()}
    path = folder / f'{seed}.pth'
    torch.save(dict(state_dict=state, meta=dict(settings=settings)), path)
    return path


@pytest.fixture
def labels(tmp_path) -> Path:
    return write_labels(tmp_path / 'labels')


def write_labels(folder: Path, channels: int = 3) -> Path:
    random = np.random.default_rng(0)
    for part, count in (('train', 24), ('test', 15)):
        for number in range(count):
            name = CLASSES[number % 3]
            path = folder / part / name / str(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            low = 60 * (number % 3)
            pixels = random.integers(low, low + 130, (50, 40, channels), dtype=np.uint8)
            if channels == 3:
                Image.fromarray(pixels).save(f'{path}.png')
            else:
                np.save(f'{path}.npy', pixels)
    return folder


def knn_by_hand(path: Path, labels: Path, k: int = 20) -> float:
    banks = {}
    for part in ('train', 'test'):
        x, names = mmairl.embed(path, labels / part)
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        banks[part] = x, np.array([CLASSES.index(Path(name).parent.name) for name in names])
    (x, y), (queries, truth) = banks['train'], banks['test']
    cosines = queries @ x.T
    right = 0
    for row, label in zip(cosines, truth):
        nearest = np.argsort(-row)[:k]
        votes = np.bincount(y[nearest], np.exp(row[nearest] / 0.07), len(CLASSES))
        right += votes.argmax() == label
    return 100 * right / len(truth)


@pytest.mark.parametrize('size, channels', [(32, 3), (64, 3), (224, 3), (32, 5)])
def test_all_routes_prepare_images_alike(tmp_path, size, channels, capsys):
    labels = write_labels(tmp_path / 'labels', channels)
    path = checkpoint(tmp_path, 0, size, channels)
    by_hand = pytest.approx(knn_by_hand(path, labels))
    result = mmairl.evaluate(path, labels, ['knn']).results['knn']
    assert result.scores['k-NN, k = 20'] == by_hand
    assert result.details['image_size'] == [size, size] and result.details['test_images'] == 15
    main(['evaluate', 'knn', str(path), '--data', str(labels), '--cache', 'none'])
    assert read_json(tmp_path / '0_student_knn_labels.json')['scores']['k-NN, k = 20'] == by_hand
    features, _ = mmairl.embed(path, labels / 'test')
    for to, name in (('torchvision', 'a.pth'), ('safetensors', 'a.safetensors'), ('hub', 'hub')):
        main(['convert', str(path), str(tmp_path / name), '--to', to])
        card = Path(capsys.readouterr().out.split(': ')[-1].split('\n')[0])
        assert preprocessing_code(vars(read_backbone(path).input)) in card.read_text()
        file = tmp_path / name / 'model.safetensors' if to == 'hub' else tmp_path / name
        np.testing.assert_allclose(
            mmairl.embed(file, labels / 'test')[0], features, rtol=1e-4, atol=1e-5
        )
    settings = read_json(tmp_path / 'hub/config.json')['pretrained_cfg']
    assert settings['input_size'] == [channels, size, size] and settings['mean'] == [0.4] * channels


def test_hub_folder_reads_images_of_all_modes_like_its_checkpoint(tmp_path):
    path = checkpoint(tmp_path, 0)
    main(['convert', str(path), str(tmp_path / 'hub'), '--to', 'hub'])
    pixels = np.random.default_rng(0).integers(0, 255, (40, 40, 4), dtype=np.uint8)
    for mode in ('L', 'RGB', 'RGBA'):
        Image.fromarray(pixels, 'RGBA').convert(mode).save(tmp_path / f'{mode}.png')
    images = sorted(tmp_path.glob('*.png'))
    found, expected = (mmairl.embed(source, images)[0] for source in (tmp_path / 'hub', path))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_data_config_gives_its_recipes_and_the_same_images_to_both_networks(tmp_path, labels):
    parts = {part: dict(type='ImageFolder', root=str(labels / part)) for part in ('train', 'test')}
    recipes = dict(linear='linear_shapes_20e')
    data = tmp_path / 'data.py'
    data.write_text(f'evaluation = {parts}\nrecipes = {recipes}\n')
    path = checkpoint(tmp_path, 0)
    assert labeled_config(path, data).recipes == recipes
    # Without recipes of its own, the data config keeps those of the network's config.
    network = dict(type='mmpretrain.ResNet', depth=18, base_channels=8)
    normal = dict(type='ViewPreprocessor', mean=[0.4] * 3, std=[0.3] * 3)
    (tmp_path / 'network.py').write_text(
        f'model = dict(backbone={network}, data_preprocessor={normal})\nrecipes = {recipes}\n'
    )
    (tmp_path / 'plain.py').write_text(f'evaluation = {parts}\n')
    kept = labeled_config(path, tmp_path / 'plain.py', tmp_path / 'network.py')
    assert kept.recipes == recipes
    found = mmairl.evaluate(path, data, ['knn'])
    for results in (found.results, found.baselines):
        assert results['knn'].details['image_size'] == [32, 32]


def test_sample_states_how_its_images_are_prepared():
    images = read_backbone(PATH).input
    assert (images.size, images.resize, images.mean) == (48, 48, [0.5, 0.5, 0.5])


def test_protocol_without_a_random_row_is_measured(tmp_path, labels):
    found = mmairl.evaluate(checkpoint(tmp_path, 0), labels, ['knn', 'norms'])
    assert 'norms' in found.results and [*found.baselines] == ['knn']


def test_table_states_what_a_reader_must_know(tmp_path, labels):
    found = mmairl.evaluate(checkpoint(tmp_path, 0), labels, ['knn'])
    text = str(found)
    for word in ('chance', 'test images', '32 x 32', '95 % interval', 'random'):
        assert word in text
    assert len(text.splitlines()) == 3 and found.scores.keys() >= {'k-NN, k = 20'}


def test_folder_without_parts_is_split_by_class(tmp_path, labels):
    cfg = labeled_config(checkpoint(tmp_path, 0), labels / 'train')
    assert [cfg.evaluation[part].held for part in ('train', 'test')] == [False, True]
    details = (
        mmairl.evaluate(checkpoint(tmp_path, 0), labels / 'train', ['knn']).results['knn'].details
    )
    assert details['test_images'] == 5


def test_compare_prepares_images_alike_and_its_page_names_a_command_that_works(tmp_path, labels):
    files = {'a': checkpoint(tmp_path, 0), 'b': checkpoint(tmp_path, 1, size=64)}
    found = mmairl.compare(
        {name: [path] for name, path in files.items()}, labels, ['knn'], tmp_path / 'out', jobs=1
    )
    scores = {row['name']: row['runs'][0]['scores']['knn'] for row in found.record['rows']}
    assert {name: scores[name] for name in files} == {
        name: pytest.approx(knn_by_hand(path, labels)) for name, path in files.items()
    }
    assert 'images are recognized only by b' in str(found)
    by_row = {line.split(' | ')[0].strip('| '): line for line in str(found).splitlines()}
    low, high = interval(scores['b'], 15)
    for text in (f'{scores["b"]:.1f} ({low:.1f} to {high:.1f})', '33.3 | 15 | 64 x 64'):
        assert text in by_row['b']
    assert '33.3 | 15 | 32 x 32' in by_row['random initialization']
    commands = re.findall('<code>(mmairl .*)</code>', found.page.read_text())
    found.page.unlink()
    for command in commands:
        environment = os.environ | dict(PATH=f'{Path(sys.executable).parent}:{os.environ["PATH"]}')
        subprocess.run(command, shell=True, check=True, cwd=found.page.parent, env=environment)
    assert found.page.is_file() and len(commands) == 1


def test_wrong_arguments_are_errors(tmp_path, labels):
    path = checkpoint(tmp_path, 0)
    with raises_code('bad-networks'):
        mmairl.compare(dict(a=[path], b=[]), labels)
    (tmp_path / 'empty').mkdir()
    one_class = tmp_path / 'one'
    (one_class / 'train' / 'a').mkdir(parents=True)
    (one_class / 'test' / 'a').mkdir(parents=True)
    for part in ('train', 'test'):
        for number in range(3):
            Image.new('RGB', (9, 9), (number, 0, 0)).save(
                one_class / part / 'a' / f'{part}{number}.png'
            )
    for data, code in (
        (tmp_path / 'none', 'no-images'),
        (tmp_path / 'empty', 'no-images'),
        (one_class, 'one-class'),
    ):
        with raises_code(code):
            mmairl.evaluate(path, data, ['knn'])
    with raises_code('unknown-protocol'):
        mmairl.evaluate(path, labels, ['kmn'])
    for networks in ({'a': [path]}, {'a': path, 'b': [path]}, [path, path]):
        with raises_code('bad-networks'):
            mmairl.compare(networks, labels, out=tmp_path / 'out')
