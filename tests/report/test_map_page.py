"""The map of images: its numbers against brute force, what it takes, and what it says where none can be drawn."""

import base64
import csv
import json
import math
import re
import shutil

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

import mmairl
from mmairl.analysis.feature_map import nearest_cells
from mmairl.data.datasets import ImageFolder
from mmairl.data.packed import pack
from mmairl.errors import UserError
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
    """Forty pictures in two classes, one of them twice, and a file that is none."""
    root, random = tmp_path_factory.mktemp('images'), np.random.default_rng(0)
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
    return map_images(checkpoint, folder, tmp_path_factory.mktemp('out') / 'map.html', size=SIZE, device='cpu')


def test_neighbors_equal_brute_force(page, checkpoint, folder):
    data = data_of(page)
    assert data['names'][:2] == ['a/00.png', 'a/02.png'] and len(data['names']) == 41 and 'a/50.png' in page.read_text()
    assert data['classes'] == ['a', 'b'] and data['labels'] == [0] * 20 + [1] * 21
    cfg, found, normal, views, _ = embedding_network(checkpoint, size=SIZE)
    features = extract(load_backbone(cfg, found), ImageFolder(folder, views), Extraction(**normal, batch_size=64))
    assert features.unreadable == (20,)
    unit = torch.nn.functional.normalize(features.x.double()).numpy()
    near = unpacked(data['maps'][2]['near'], '<u4').reshape(41, 12)
    far = unpacked(data['maps'][2]['far'], '<f4').reshape(41, 12)
    for i in range(41):
        similarity = sorted((-float(unit[i] @ unit[j]), j) for j in range(41) if j != i)[:12]
        assert np.allclose(far[i], [1 + value for value, _ in similarity], atol=1e-6)
        for (value, j), shown in zip(similarity, near[i]):
            assert j == shown or abs(value + unit[i] @ unit[shown]) < 1e-6  # one as near
    # The pictures are those that the network is given, in the same order.
    sheet = re.search(r'<image id="sheet-0"[^>]* href="data:image/jpeg;base64,([^"]+)"', page.read_text())[1]
    (path := page.with_name('sheet.jpg')).write_bytes(base64.b64decode(sheet))
    pixels = np.asarray(Image.open(path)).astype(float)
    side = data['side']
    assert pixels.shape == (SHEET * side, SHEET * side, 3)
    of_copy = pixels[2 * side : 3 * side, 8 * side : 9 * side]  # 40 = 2 x 16 + 8, of the last name, b/99.png
    assert (
        np.abs(of_copy - pixels[:side, :side]).mean() < 1
        and np.abs(of_copy - pixels[:side, side : 2 * side]).mean() > 20
    )


def test_page_with_patches_has_cells(checkpoint, folder, tmp_path):
    page = map_images(checkpoint, folder, tmp_path / 'map.html', size=64, device='cpu', patches=5)
    cells = data_of(page)['cells']
    assert (cells['of'], cells['rows'], cells['columns'], cells['count']) == ([0, 10, 20, 30, 40], 2, 2, 4)
    files = [folder / data_of(page)['names'][place] for place in cells['of']]
    x, _, _ = mmairl.embed(checkpoint, files, size=64, patches=True, out=tmp_path / 'cells.npy', device='cpu')
    far, near = nearest_cells(torch.tensor(x), 4)
    assert (unpacked(cells['near'], '<u4') == near.numpy().ravel()).all()
    np.testing.assert_allclose(unpacked(cells['far'], '<f4'), far.numpy().ravel(), atol=1e-6)


def test_archives_and_lists_of_files_have_maps(checkpoint, folder, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    for _ in pack(ImageFolder(folder, max_unreadable=0.5), tmp_path / 'packed.tar'):
        pass
    packed = data_of(mmairl.map_images(checkpoint, tmp_path / 'packed.tar', tmp_path / 'a.html', size=SIZE))
    assert packed['classes'] == ['a', 'b'] and packed['names'][3] in {
        str(file.relative_to(folder).with_suffix('')) for file in folder.glob('*/*')
    }
    (again := tmp_path / 'again' / 'epoch_1.pth').parent.mkdir()
    shutil.copy(checkpoint, again)
    both = data_of(mmairl.map_images([checkpoint, again], tmp_path / 'packed.tar', tmp_path / 'c.html', size=SIZE))
    assert [chart['title'] for chart in both['maps']][1:] == ['random weights', 'run0/epoch_1.pth', 'again/epoch_1.pth']
    assert both['maps'][2]['near'] == both['maps'][3]['near']
    few = data_of(mmairl.map_images(checkpoint, sorted((folder / 'b').iterdir())[:5], tmp_path / 'b.html', size=SIZE))
    assert few['classes'] == [] and len(unpacked(few['maps'][0]['near'], '<u4')) == 5 * 4  # all others are neighbours
    assert 'groups by k-means' not in (tmp_path / 'b.html').read_text()


def test_column_colors_by_values_or_quintiles(tmp_path):
    names = [f'x/{i}.png' for i in range(20)]
    with open(tmp_path / 'a.csv', 'w', newline='') as file:
        csv.writer(file).writerows([('file', 'kind', 'depth')] + [(f'{i}.png', 'ab'[i % 2], i) for i in range(19)])
    classes, labels = by_column(names, tmp_path / 'a.csv', 'kind')
    assert classes == ['(none)', 'a', 'b'] and labels.tolist() == [1 + i % 2 for i in range(19)] + [0]
    classes, labels = by_column(names, tmp_path / 'a.csv', 'depth')
    assert classes[0] == '0 to 3.6' and len(classes) == 6
    assert labels.tolist() == [min(4, int(i / 3.6)) for i in range(19)] + [5]
    for wrong, said in (('dept', "did you mean 'depth'"), ('', 'has no column')):
        with pytest.raises(UserError, match=said):
            by_column(names, tmp_path / 'a.csv', wrong)
    with pytest.raises(UserError, match="names no image; expected names such as 'other.png'"):
        by_column(['other.png'], tmp_path / 'a.csv', 'kind')


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
    with pytest.raises(UserError) as error:
        map_images(checkpoint, images, tmp_path / 'map.html', size=SIZE)
    assert error.value.code == code


@pytest.mark.parametrize('factor, code', [(math.nan, 'not-finite'), (0, 'collapsed-features')])
def test_map_of_useless_features_raises(checkpoint, folder, tmp_path, factor, code):
    state = torch.load(checkpoint)
    for key, value in state.items():
        if 'bn' in key and value.is_floating_point():
            state[key] = value * factor
    torch.save(state, tmp_path / 'useless.pth')
    with pytest.raises(UserError) as error:
        map_images(tmp_path / 'useless.pth', folder, tmp_path / 'map.html', size=SIZE)
    assert error.value.code == code
    assert not (tmp_path / 'map.html').exists()
