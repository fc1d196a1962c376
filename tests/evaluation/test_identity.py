"""The identity of a result contains everything that can change a score, and nothing more."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from mmengine import Config
from PIL import Image

from mmairl.checkpoints.read import read_backbone
from mmairl.data.datasets import ImageFolder
from mmairl.data.packed import pack
from mmairl.evaluation import identity
from mmairl.evaluation.identity import (
    claim,
    code_identity,
    config_identity,
    data_identity,
    difference,
    features_key,
    identity_of,
    key_of,
    weights_identity,
)
from mmairl.evaluation.protocol import evaluate, settings_for

VIEW = [[dict(type='Resize', size=16), dict(type='CenterCrop', size=16)]]


def image(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    # In this format, the size of the file does not depend on the pixels.
    Image.fromarray(pixels).save(path, 'BMP')


@pytest.fixture
def folder(tmp_path) -> Path:
    for label, name in enumerate('ab'):
        for number in range(5):
            image(tmp_path / 'images' / name / f'{number}.bmp', 10 * label + number)
    return tmp_path / 'images'


def described(folder: Path, **more) -> dict:
    return dict(type='ImageFolder', root=str(folder), views=VIEW, **more)


def swap_pixels(path: Path) -> None:
    """Replace the file with another image of the same size, and restore its modification time."""
    status = path.stat()
    image(path, 99)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size


def test_data_identity_follows_selected_images_only(folder, tmp_path, monkeypatch):
    base = data_identity(described(folder))
    shutil.copytree(folder, tmp_path / 'copy')
    monkeypatch.chdir(tmp_path)
    for same in (folder, './images', tmp_path / 'copy'):
        assert data_identity(described(same)) == base
    other = [[dict(type='Resize', size=18), dict(type='CenterCrop', size=16)]]
    assert data_identity({**described(folder), 'views': other}) == base, 'the identity of the data depends on the views'
    seen = [key_of(base)]
    changes = [
        lambda: swap_pixels(folder / 'a/3.bmp'),
        lambda: os.rename(folder / 'a/3.bmp', folder / 'b/3b.bmp'),
        lambda: image(folder / 'a/7.bmp', 7),
        lambda: os.unlink(folder / 'b/0.bmp'),
        lambda: os.rename(folder / 'a', folder / 'c'),
    ]
    for change in changes:
        change()
        seen.append(key_of(data_identity(described(folder))))
    assert len(set(seen)) == len(seen)


def test_identity_of_large_data_has_file_times(folder, monkeypatch):
    monkeypatch.setattr(identity, 'WHOLE', 100)
    base = data_identity(described(folder))
    os.utime(folder / 'a/3.bmp')
    assert data_identity(described(folder)) != base


# Files up to the limit `WHOLE` are identified by their content. Larger files are identified by
# their sizes and times.
@pytest.mark.parametrize('whole', [2**28, 100])
def test_rewritten_archive_is_other_data(folder, tmp_path, monkeypatch, whole):
    monkeypatch.setattr(identity, 'WHOLE', whole)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    archive = tmp_path / 'images.tar'
    packed = dict(type='Shards', root=str(archive), views=VIEW)
    list(pack(ImageFolder(folder), archive))
    base = data_identity(packed)
    swap_pixels(folder / 'a/1.bmp')
    archive.unlink()
    list(pack(ImageFolder(folder), archive))
    assert data_identity(packed) != base


def test_identity_of_shards_ignores_their_location(folder, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    for place in ('here', 'there'):
        list(pack(ImageFolder(folder), tmp_path / place / 'a.tar', size=5000))
    identities = [
        data_identity(dict(type='Shards', root=f'{tmp_path}/{root}', views=VIEW, **more))
        for root, more in [('here/a-*.tar', {}), ('there/a-*.tar', {}), ('here/a-*.tar', dict(cache='/scratch'))]
    ]
    assert identities[0] == identities[1] == identities[2]
    (tmp_path / 'there/a-000001.tar').unlink()
    assert data_identity(dict(type='Shards', root=f'{tmp_path}/there/a-*.tar', views=VIEW)) != identities[0]


def test_rewritten_array_on_disk_is_other_data(tmp_path):
    stl = tmp_path / 'stl10_binary'
    stl.mkdir()
    (stl / 'class_names.txt').write_text('a\nb\n')
    images = np.arange(4 * 3 * 96 * 96, dtype=np.uint32).astype(np.uint8)
    images.tofile(stl / 'test_X.bin')
    np.array([1, 2, 1, 2], np.uint8).tofile(stl / 'test_y.bin')
    data = dict(type='STL10', root=str(tmp_path), split='test')
    base = data_identity(data)
    images[50] ^= 1
    images.tofile(stl / 'test_X.bin')
    assert data_identity(data) != base


def test_list_of_other_images_is_other_data(folder, tmp_path):
    names = tmp_path / 'names.txt'
    data = dict(type='ListedSubset', dataset=described(folder), list_file=str(names))
    names.write_text('a/0.bmp\nb/0.bmp\n')
    base = data_identity(data)
    shutil.copy(names, tmp_path / 'same.txt')
    assert data_identity({**data, 'list_file': str(tmp_path / 'same.txt')}) == base
    names.write_text('a/1.bmp\nb/0.bmp\n')
    assert data_identity(data) != base


def test_custom_data_set_is_identified_by_its_folder(tmp_path, folder):
    class Own(torch.utils.data.Dataset):
        labels = torch.arange(10) % 2

        def __len__(self) -> int:
            return 10

    class Mixed(torch.utils.data.ConcatDataset):
        sets = dict(own=Own())

    data = dict(type='Own', root=str(folder))
    base = data_identity(data, Own())
    mixed = dict(type='Mixture', sets=dict(own=data))
    mixture = Mixed([Own()])
    of_mixture = data_identity(mixed, mixture)
    swap_pixels(folder / 'b/2.bmp')
    assert data_identity(data, Own()) != base
    assert data_identity(mixed, mixture) != of_mixture


def test_weights_differ_by_value_shape_and_name():
    base = dict(a=torch.zeros(2, 3), b=torch.tensor(0))
    others = [
        dict(a=torch.zeros(3, 2), b=torch.tensor(0)),
        dict(a=torch.full((2, 3), 1e-30), b=torch.tensor(0)),
        dict(a=torch.zeros(2, 3), c=torch.tensor(0)),
    ]
    assert weights_identity(dict(reversed(base.items()))) == weights_identity(base)
    assert len({weights_identity(weights) for weights in [base, *others]}) == 4


def test_weights_are_identified_by_float32_values():
    base = dict(a=torch.randn(3, 2), b=torch.randn(3))
    same = dict(base, a=base['a'].double()) | {'bn.num_batches_tracked': torch.tensor(7)}
    assert weights_identity(same) == weights_identity(base)
    half = {name: value.half() for name, value in base.items()}
    assert weights_identity(half) != weights_identity(base)
    assert weights_identity(half) == weights_identity({name: value.float() for name, value in half.items()})


def test_split_is_kept_and_decoder_is_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'train').mkdir()
    assert config_identity(dict(split='train', root='train')) == dict(split='train')
    assert {'mmairl', 'torch', 'torchvision', 'pillow', 'jpeg'} <= set(code_identity())


def test_results_without_identity_are_not_reused(tmp_path):
    (tmp_path / 'scores.json').write_text('{}')
    with raises_code('unknown-result'):
        claim(tmp_path, dict(weights='3f'))


CHANGES = {
    'evaluation.ks': [5],
    'evaluation.views': dict(knn=[dict(type='Resize', size=20)]),
    'evaluation.precision': 'bfloat16',
    'evaluation.train.count': 44,
    'evaluation.test.count': 29,
    'model.data_preprocessor.mean': (0.5, 0.5, 0.5),
    'model.backbone.out_indices': [2],
}


def test_identity_has_every_input_and_no_path(cfg, checkpoint, tmp_path):
    settings, backbone = settings_for('knn'), read_backbone(checkpoint)
    identities = [identity_of(cfg, settings, subject) for subject in (backbone, 'random', 'pixels')]
    identities.append(identity_of(cfg, settings, read_backbone(checkpoint, 'teacher')))
    identities += [identity_of(cfg, settings, backbone, asked=dict(constant=constant)) for constant in (0.1, 5.0)]
    for key, value in CHANGES.items():
        cfg.merge_from_dict({key: value})
        identities.append(identity_of(cfg, settings, backbone))
    assert len({key_of(one) for one in identities}) == len(identities)
    shutil.copy(checkpoint, tmp_path / 'copy.pth')
    cfg.evaluation.batch_size = 3
    assert identity_of(cfg, settings, read_backbone(tmp_path / 'copy.pth')) == identities[-1]


@pytest.mark.parametrize('key', [*CHANGES, 'part'])
def test_features_key_follows_what_features_depend_on(cfg, checkpoint, key):
    def key_of_training(part: str = 'student') -> str:
        identity = identity_of(cfg, settings_for('knn'), read_backbone(checkpoint, part))
        return features_key(identity, 'train', cfg.evaluation.train)

    before = key_of_training()
    if key == 'part':
        assert key_of_training('teacher') != before
    else:
        cfg.merge_from_dict({key: CHANGES[key]})
        has_changed = key_of_training() != before
        assert has_changed == (key not in ('evaluation.ks', 'evaluation.test.count'))


def test_absent_data_match_and_unreadable_data_do_not(folder, tmp_path):
    names = tmp_path / 'names.txt'
    names.write_text('a/0.bmp\nb/0.bmp\n')
    data = dict(type='ListedSubset', dataset=described(folder), list_file=str(names))
    base = data_identity(data)
    # The list is gone, but the images still exist.
    names.rename(tmp_path / 'kept.txt')
    assert 'content' in difference(dict(data=base), dict(data=data_identity(data)))
    assert 'unknown: ' in difference(dict(data=data_identity(data)), dict(data=data_identity(data)))
    folder.rename(tmp_path / 'elsewhere')
    assert difference(base, data_identity(data)) == difference(dict(a=base), dict(a=data_identity(data))) == ''
    other = {**data, 'dataset': described(folder, max_pixels=9)}
    assert 'max_pixels' in difference(base, data_identity(other)), 'settings are not compared if the images are missing'
    # An empty folder may be the mount point of a disk that is not mounted.
    folder.mkdir()
    assert difference(base, data_identity(data)) == ''
    image(folder / 'a/0.bmp', 0)
    assert difference(base, data_identity(data))


def test_test_images_of_other_classes_are_errors(cfg: Config, folder: Path, tmp_path):
    cfg.evaluation = dict(train=described(folder), test=described(tmp_path / 'test'))
    for number in range(3):
        image(tmp_path / 'test/b' / f'{number}.bmp', number)
    with raises_code('other-classes'):
        evaluate(cfg, 'knn', 'pixels', settings=settings_for('knn', ks=(1,)))
