"""Image folders: the order of files and classes, unreadable images, and invalid folders."""

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from harness.errors import raises_code
from PIL import Image

from mmairl.data.datasets import ImageFolder, UnlabelledFolder, image_files
from mmairl.data.decode import UnreadableImage, extensions


def picture(path: Path, color: tuple[int, ...] = (255, 0, 0)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new('RGB', (20, 30), color).save(path)
    return path


def test_classes_are_sorted_and_cyclic_links_raise(tmp_path):
    for name, color in (('zebra', (0, 0, 255)), ('ant', (255, 0, 0))):
        picture(tmp_path / name / 'deep' / 'a.png', color)
    data = ImageFolder(tmp_path)
    assert data.classes == ['ant', 'zebra'] and data.labels.tolist() == [0, 1]
    assert data[1]['inputs'][0][:, 8, 8].tolist() == [0, 0, 255]
    for name in ('one', 'two'):
        (tmp_path / 'ant' / name).symlink_to(tmp_path)
    with raises_code('cyclic-link', match='ant/one:'):
        UnlabelledFolder(tmp_path)
    # Each folder contains a link to the other folder, so following the links would never end.
    for one, two in (('left', 'right'), ('right', 'left')):
        picture(tmp_path / 'pair' / one / 'a.png')
        (tmp_path / 'pair' / one / 'other').symlink_to(tmp_path / 'pair' / two)
    with raises_code('cyclic-link', match='left/other/other:'):
        UnlabelledFolder(tmp_path / 'pair')


@pytest.mark.parametrize('kind', [ImageFolder, UnlabelledFolder])
def test_folder_that_cannot_be_listed_is_an_error(kind, tmp_path, monkeypatch):
    fault = PermissionError(errno.EACCES, 'Permission denied', str(tmp_path))
    monkeypatch.setattr(os, 'scandir', Mock(side_effect=fault))
    with raises_code('unlisted-folder', str(tmp_path)):
        kind(tmp_path)


def test_files_of_each_folder_are_sorted(tmp_path):
    for name in ('b/2.png', 'b/10.JPG', 'a/z/1.webp', 'a/0.png', 'top.gif', '.hidden/x.png', 'a/.x.png', 'a/notes.txt'):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / 'link').symlink_to(tmp_path / 'b')
    names = ['top.gif', 'a/0.png', 'a/z/1.webp', 'b/10.JPG', 'b/2.png', 'link/10.JPG', 'link/2.png']
    assert image_files(tmp_path, extensions()) == names
    assert UnlabelledFolder(tmp_path).labels.tolist() == [-1] * 7


def test_unreadable_image_has_name_and_reason(tmp_path):
    files = [picture(tmp_path / 'class' / name) for name in ('0.png', '1.png', 'li\nne\x1b[2J.png')]
    Image.new('RGB', (30, 30)).save(files[0])
    data = ImageFolder(tmp_path, max_pixels=600)
    for file in files[1:]:
        file.unlink()
    messages = ('0.png is larger than max_pixels', '1.png has vanished', r'li\nne\x1b[2J.png has vanished')
    for index, message in enumerate(messages):
        with pytest.raises(UnreadableImage) as caught:
            data[index]
        assert str(caught.value) == f'{tmp_path}/class/{message}; fix or remove it'


def test_missing_and_empty_folders_raise(tmp_path):
    for kind in (ImageFolder, UnlabelledFolder):
        with raises_code('no-image-folder', match='does not exist'):
            kind(tmp_path / 'gone')
        (tmp_path / 'a.tar').touch()
        with raises_code('no-image-folder', match='type=Shards'):
            kind(tmp_path / 'a.tar')
        (tmp_path / 'notes').mkdir(exist_ok=True)
        (tmp_path / 'notes' / 'readme.txt').touch()
        with raises_code('no-images'):
            kind(tmp_path)
