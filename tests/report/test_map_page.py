"""Test the map of images: its neighbors equal those of a plain search, and its tiles, colors, inputs and errors are
correct.
"""

import base64
import csv
import io
import json
import math
import re
import shutil

import numpy as np
import pytest
import torch
import torchvision
from harness.errors import raises_code
from PIL import Image

import mmairl
from mmairl.analysis.feature_map import nearest_cells
from mmairl.data.datasets import ImageFolder
from mmairl.data.packed import pack
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.embed import embedding_network
from mmairl.evaluation.features import Extraction, extract
from mmairl.report.map_page import SHEET, by_column, map_images

SIZE = 32


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp('run') / 'epoch_1.pth'
    torch.save(torchvision.models.resnet18().state_dict(), path)
    return path


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Return a folder of forty images in two classes, a copy of one of them, and an unreadable file."""
    root = tmp_path_factory.mktemp('images')
    random = np.random.default_rng(0)
    for i in range(40):
        (root / 'ab'[i % 2]).mkdir(exist_ok=True)
        coarse = Image.fromarray(random.integers(0, 255, (5, 5, 3), dtype=np.uint8))
        coarse.resize((40, 40)).save(root / 'ab'[i % 2] / f'{i:02}.png')
    shutil.copy(root / 'a' / '00.png', root / 'b' / '99.png')
    (root / 'a' / '50.png').write_bytes(b'no picture')
    return root


def data_of(page) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', page.read_text())[1])


def unpacked(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind)


@pytest.fixture(scope='module')
def page(checkpoint, folder, tmp_path_factory):
    out = tmp_path_factory.mktemp('out') / 'map.html'
    return map_images(checkpoint, folder, out, size=SIZE, device='cpu')


def test_map_names_readable_images_and_classes(page):
    data = data_of(page)
    assert data['names'][:2] == ['a/00.png', 'a/02.png']
    assert len(data['names']) == 41
    assert 'a/50.png' not in data['names']
    assert 'a/50.png' in page.read_text()  # The page lists this image as unreadable
    assert data['classes'] == ['a', 'b']
    assert data['labels'] == [0] * 20 + [1] * 21


def test_neighbors_equal_brute_force(page, checkpoint, folder):
    cfg, weights, normal, views, _ = embedding_network(checkpoint, size=SIZE)
    images = ImageFolder(folder, views)
    features = extract(load_backbone(cfg, weights), images, Extraction(**normal, batch_size=64))
    assert features.unreadable == (20,)
    unit = torch.nn.functional.normalize(features.x.double()).numpy()
    distances = 1 - unit @ unit.T
    np.fill_diagonal(distances, np.inf)
    trained = data_of(page)['maps'][2]
    near = unpacked(trained['near'], '<u4').reshape(41, 12)
    far = unpacked(trained['far'], '<f4').reshape(41, 12)
    np.testing.assert_allclose(far, np.sort(distances)[:, :12], atol=1e-6)
    np.testing.assert_allclose(far, np.take_along_axis(distances, near, axis=1), atol=1e-6)


def test_sheet_shows_the_images_in_order(page):
    text = page.read_text()
    side = data_of(page)['side']
    sheet = re.search(r'id="sheet-0"[^>]* href="data:image/jpeg;base64,([^"]+)"', text)[1]
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet)))).astype(float)
    assert pixels.shape == (SHEET * side, SHEET * side, 3)
    tiles = pixels.reshape(SHEET, side, SHEET, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
    copy = tiles[40]  # This tile is b/99.png, a copy of a/00.png
    assert np.abs(copy - tiles[0]).mean() < 1
    assert np.abs(copy - tiles[1]).mean() > 20


def test_page_with_patches_has_cells(checkpoint, folder, tmp_path):
    out = tmp_path / 'map.html'
    data = data_of(map_images(checkpoint, folder, out, size=64, device='cpu', patches=5))
    cells = data['cells']
    assert cells['of'] == [0, 10, 20, 30, 40]
    assert (cells['rows'], cells['columns'], cells['count']) == (2, 2, 4)
    files = [folder / data['names'][place] for place in cells['of']]
    patches = tmp_path / 'cells.npy'
    x, _, _ = mmairl.embed(checkpoint, files, size=64, patches=True, out=patches, device='cpu')
    far, near = nearest_cells(torch.tensor(x), 4)
    assert unpacked(cells['near'], '<u4').tolist() == near.flatten().tolist()
    np.testing.assert_allclose(unpacked(cells['far'], '<f4'), far.numpy().ravel(), atol=1e-6)


@pytest.fixture
def archive(folder, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    path = tmp_path / 'packed.tar'
    for _ in pack(ImageFolder(folder, max_unreadable=0.5), path):
        pass
    return path


def test_archive_has_a_map_for_each_checkpoint(checkpoint, folder, archive, tmp_path):
    again = tmp_path / 'again' / 'epoch_1.pth'
    again.parent.mkdir()
    shutil.copy(checkpoint, again)
    data = data_of(map_images([checkpoint, again], archive, tmp_path / 'map.html', size=SIZE))
    assert data['classes'] == ['a', 'b']
    names = {str(file.relative_to(folder).with_suffix('')) for file in folder.glob('*/*')}
    assert {*data['names']} <= names
    titles = [one['title'] for one in data['maps']]
    assert titles[1:] == ['random weights', 'run0/epoch_1.pth', 'again/epoch_1.pth']
    assert data['maps'][2]['near'] == data['maps'][3]['near']


def test_few_files_have_a_map_without_groups(checkpoint, folder, tmp_path):
    files = sorted((folder / 'b').iterdir())[:5]
    page = map_images(checkpoint, files, tmp_path / 'map.html', size=SIZE)
    data = data_of(page)
    assert data['classes'] == []
    assert len(unpacked(data['maps'][0]['near'], '<u4')) == 5 * 4
    assert 'Groups' not in page.read_text()


@pytest.fixture
def table(tmp_path):
    """Write a CSV file with a kind and a depth for 19 images."""
    path = tmp_path / 'table.csv'
    rows = [('file', 'kind', 'depth')]
    rows += [(f'{number}.png', 'ab'[number % 2], number) for number in range(19)]
    with path.open('w', newline='') as file:
        csv.writer(file).writerows(rows)
    return path


NAMES = [f'x/{number}.png' for number in range(20)]


def test_column_of_words_colors_by_value(table):
    classes, labels = by_column(NAMES, table, 'kind')
    assert classes == ['(none)', 'a', 'b']
    assert labels.tolist() == [1 + number % 2 for number in range(19)] + [0]


def test_column_of_numbers_colors_by_quintile(table):
    classes, labels = by_column(NAMES, table, 'depth')
    assert classes[0] == '0 to 3.6'
    assert classes[-1] == '(none)'
    assert labels.tolist() == [min(4, int(number / 3.6)) for number in range(19)] + [5]


@pytest.mark.parametrize('column', ['dept', ''])
def test_unknown_column_raises(table, column):
    with raises_code('no-column'):
        by_column(NAMES, table, column)


def test_column_that_names_no_image_raises(table):
    with raises_code('no-named-image'):
        by_column(['other.png'], table, 'kind')


@pytest.mark.parametrize(
    'content, code',
    [
        (['00'], 'too-few-images'),
        (['00'] * 4, 'same-images'),
        ([None] * 4, 'no-readable-image'),
        ([], 'no-images'),
    ],
)
def test_map_without_enough_images_raises(checkpoint, folder, tmp_path, content, code):
    images = tmp_path / 'images'
    images.mkdir()
    for number, name in enumerate(content):
        path = images / f'{number}.png'
        if name:
            shutil.copy(folder / 'a' / f'{name}.png', path)
        else:
            path.write_bytes(b'no picture')
    with raises_code(code):
        map_images(checkpoint, images, tmp_path / 'map.html', size=SIZE)


@pytest.mark.parametrize('factor, code', [(math.nan, 'not-finite'), (0, 'collapsed-features')])
def test_map_of_useless_features_raises(checkpoint, folder, tmp_path, factor, code):
    state = torch.load(checkpoint)
    for key, value in state.items():
        if 'bn' in key and value.is_floating_point():
            state[key] = value * factor
    torch.save(state, tmp_path / 'useless.pth')
    with raises_code(code):
        map_images(tmp_path / 'useless.pth', folder, tmp_path / 'map.html', size=SIZE)
    assert not (tmp_path / 'map.html').exists()
