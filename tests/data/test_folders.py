"""A user's folders: what is read, what is skipped and counted, and what is refused."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from mmairl.data.folders import ImageFolder, UnlabelledFolder
from mmairl.errors import UserError

VIEW = [[dict(type='Resize', size=16), dict(type='CenterCrop', size=16)]]


def picture(path: Path, colour: tuple[int, ...] = (255, 0, 0), mode: str = 'RGB', **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (20, 30), colour).save(path, **options)
    return path


def test_classes_are_the_sorted_folder_names(tmp_path):
    for name, colour in (('zebra', (0, 0, 255)), ('ant', (255, 0, 0))):
        picture(tmp_path / name / 'deep' / 'a.png', colour)
    data = ImageFolder(tmp_path, views=VIEW)
    assert data.classes == ['ant', 'zebra'] and data.labels.tolist() == [0, 1]
    assert data[1]['inputs'][0][:, 8, 8].tolist() == [0, 0, 255]


def test_modes_become_rgb_and_exif_turns_the_image(tmp_path):
    picture(tmp_path / 'grey.png', 7, 'L')
    picture(tmp_path / 'cmyk.jpg', (0, 0, 0, 0), 'CMYK')
    picture(tmp_path / 'alpha.png', (1, 2, 3, 0), 'RGBA')
    exif = Image.Exif()
    exif[0x0112] = 6  # lay it on its side
    picture(tmp_path / 'turned.jpg', exif=exif)
    data = UnlabelledFolder(tmp_path)
    shapes = {data.path(i).name: tuple(data.raw(i).shape) for i in range(len(data))}
    assert shapes == {
        'alpha.png': (3, 30, 20),
        'cmyk.jpg': (3, 30, 20),
        'grey.png': (3, 30, 20),
        'turned.jpg': (3, 20, 30),
    }
    assert data.labels.tolist() == [-1] * 4


@pytest.mark.parametrize('workers', [0, 2])
def test_unreadable_images_are_replaced_counted_and_named(tmp_path, workers):
    for i in range(30):
        picture(tmp_path / f'{i:02}.png', (i, 0, 0))
    (tmp_path / '04.png').write_text('not an image')
    (tmp_path / '05.png').write_bytes((tmp_path / '05.png').read_bytes()[:40])
    data = UnlabelledFolder(tmp_path, views=VIEW)
    batches = list(DataLoader(data, batch_size=10, num_workers=workers))
    reds = torch.cat([batch['inputs'][0][:, 0, 8, 8] for batch in batches]).tolist()
    assert reds == [6 if i in (4, 5) else i for i in range(30)]
    assert data.unreadable_files() == [str(tmp_path / '04.png'), str(tmp_path / '05.png')]
    assert list(data.unreadable_reasons().values()) == ['is not recognised as an image'] * 2


@pytest.mark.parametrize('kind', [ImageFolder, UnlabelledFolder])
def test_an_image_above_max_pixels_or_gone_since_the_start_gives_way_to_the_next(tmp_path, kind):
    files = [picture(tmp_path / 'class' / f'{i}.png', (i, 0, 0)) for i in range(4)]
    Image.new('RGB', (30, 30)).save(files[1])
    data = kind(tmp_path, max_pixels=600)
    files[2].unlink()
    assert data.load(1)[1] == 3 and int(data.raw(1)[0, 0, 0]) == 3
    assert data.unreadable_reasons() == {
        str(files[1]): 'is larger than max_pixels',
        str(files[2]): 'has vanished',
    }


def test_too_many_unreadable_images_are_an_error_that_names_some(tmp_path):
    for i in range(30):
        (tmp_path / f'{i:02}.jpg').touch()
    picture(tmp_path / 'good.jpg')
    with pytest.raises(
        UserError, match=r'11 of the 31 images .* cannot be read, more than the 10 .*00\.jpg \(is empty\)'
    ):
        UnlabelledFolder(tmp_path, views=VIEW)[0]


def test_missing_and_empty_folders_say_what_is_wanted(tmp_path):
    for kind in (ImageFolder, UnlabelledFolder):
        with pytest.raises(UserError, match='does not exist; .* train_dataloader.dataset.root=DIR'):
            kind(tmp_path / 'gone')
        (tmp_path / 'notes').mkdir(exist_ok=True)
        (tmp_path / 'notes' / 'readme.txt').touch()
        with pytest.raises(UserError, match='holds no image'):
            kind(tmp_path)
