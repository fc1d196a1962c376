"""A folder in one file: the same items, readable by others, refused when damaged."""

import io
import pickle
import runpy
import sys
import tarfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from mmairl.data import images, packed
from mmairl.data.folders import ImageFolder, UnlabelledFolder
from mmairl.data.images import Reason
from mmairl.data.packed import Packed, pack
from mmairl.errors import UserError
from mmairl.registry import DATASETS

VIEW = [dict(type='RandomResizedCrop', size=16), dict(type='RandomFlip')]
TOOL = Path(__file__).parents[2] / 'tools/pack.py'


@pytest.fixture
def folder(tmp_path) -> Path:
    """Noise in three classes, in several formats, one file below a deep path of long names."""
    generator = np.random.default_rng(0)
    long = '/'.join(['n' * 60] * 4)
    for name in ('ant/1.jpg', 'ant/2.png', f'bee/{long}/3.webp', 'bee/4.jpg', 'ç a/5.jpg'):
        path = tmp_path / 'images' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (20, 31, 3), np.uint8)).save(path)
    return tmp_path / 'images'


def make(folder: Path, workers: int = 0) -> Path:
    out = folder.parent / 'images.tar'
    list(pack(ImageFolder(folder), out, workers))
    return out


def test_its_items_are_those_of_the_folder_also_in_workers_forked_or_started_anew(folder):
    plain = ImageFolder(folder, views=[VIEW, VIEW])
    one = DATASETS.build(dict(type='Packed', root=str(make(folder, workers=2)), views=[VIEW, VIEW]))
    assert one.classes == plain.classes == ['ant', 'bee', 'ç a'] and torch.equal(one.labels, plain.labels)
    assert len(one) == len(plain) == 5
    for i in range(5):
        assert torch.equal(one.raw(i), plain.raw(i))
        items = []
        for dataset in (one, plain):
            torch.manual_seed(i)
            items.append(dataset[i])
        assert all(torch.equal(*views) for views in zip(items[0]['inputs'], items[1]['inputs']))
        assert items[0]['data_samples'] == items[1]['data_samples']
    data = Packed(one.root)
    assert torch.equal(next(iter(DataLoader(data, batch_size=5, num_workers=1)))['inputs'][0][4], plain.raw(4))
    assert torch.equal(pickle.loads(pickle.dumps(data)).raw(3), data.raw(3))


def test_any_tar_program_gets_the_files_back_and_a_folder_makes_one_archive(folder):
    first = make(folder).read_bytes()
    assert make(folder).read_bytes() == first
    with tarfile.open(folder.parent / 'images.tar') as archive:
        names = [name for name in archive.getnames() if not name.startswith('.mmairl')]
        assert names == [path.decode() for path in ImageFolder(folder).files.tolist()]
        for name in names:
            assert archive.extractfile(name).read() == (folder / name).read_bytes()
    list(pack(UnlabelledFolder(folder), folder.parent / 'out.tar'))
    assert Packed(folder.parent / 'out.tar').classes == [] and len(Packed(folder.parent / 'out.tar')) == 5


def test_an_unreadable_image_is_left_out_and_named_and_too_many_leave_no_archive(folder):
    (folder / 'ant/2.png').write_bytes(b'no image')
    (folder / 'bee/0.jpg').touch()
    out = folder.parent / 'out.tar'
    with pytest.raises(UserError, match=r'1 of the first 2 images .* cannot be read, ant/2.png is not'):
        list(pack(ImageFolder(folder, max_unreadable=0), out))
    assert [path.name for path in folder.parent.iterdir()] == ['images']
    said = dict(pack(ImageFolder(folder), out))
    left_out = {'ant/2.png': Reason.NO_IMAGE.phrase, 'bee/0.jpg': Reason.EMPTY.phrase}
    assert {path: reason for path, reason in said.items() if reason} == left_out
    assert len(Packed(out)) == 4 and Packed(out).labels.tolist() == [0, 1, 1, 2]


def test_what_is_no_archive_of_ours_or_cut_short_is_refused_in_a_sentence(folder, tmp_path):
    with pytest.raises(UserError, match=r'does not exist; make it with tools/pack.py'):
        Packed(tmp_path / 'none.tar')
    with tarfile.open(tmp_path / 'other.tar', 'w') as archive:
        archive.add(folder / 'ant/1.jpg', 'ant/1.jpg')
    with pytest.raises(UserError, match=r'is no archive of tools/pack.py'):
        Packed(tmp_path / 'other.tar')
    out = make(folder)
    with tarfile.open(out) as archive:  # what follows the last member is filling
        last = archive.getmember(packed.CONTENTS)
    whole = out.read_bytes()
    for keep in (0.3, 0.8, 0.97):
        out.write_bytes(whole[: int(keep * (last.offset_data + last.size))])
        with pytest.raises(UserError, match='cut short or damaged'):
            Packed(out)
    out.write_bytes(whole)
    data = Packed(out)
    with out.open('rb+') as file:
        file.seek(int(data.starts[3]))
        file.write(b'\0' * 100)
    with pytest.raises(UserError, match=r'image 3 of .*images.tar is not .*, so the archive is damaged'):
        data.raw(3)


def test_a_table_that_points_outside_or_holds_a_pickle_or_a_bomb_is_refused(folder):
    out = make(folder)
    table, before = packed.read_contents(out), out.read_bytes()
    start = before.rindex(packed.CONTENTS.encode()) + packed.HEADER
    for changed in (
        dict(starts=np.array([-1] * 5)),
        dict(sizes=np.array([2**40] * 5)),
        dict(labels=np.zeros(3, int)),
        dict(classes=np.array([dict()], object)),
        dict(save=np.savez_compressed, surplus=np.zeros(10**7)),  # of 80 MB, in 80 kB
    ):
        buffer = io.BytesIO()
        changed.pop('save', np.savez)(buffer, **{**table, **changed})
        out.write_bytes(before[:start] + buffer.getvalue())
        with pytest.raises(UserError, match='cut short or damaged'):
            Packed(out)
        out.write_bytes(before)
    assert len(Packed(out)) == 5


def test_a_file_system_that_fails_is_asked_again_and_then_named(folder, monkeypatch):
    data, slept, image = Packed(make(folder)), [], (folder / 'ant/1.jpg').read_bytes()
    monkeypatch.setattr(images.time, 'sleep', slept.append)
    monkeypatch.setattr(packed.os, 'pread', Mock(side_effect=[OSError(116, 'stale'), image]))
    assert data.raw(0).shape == (3, 20, 31) and slept == [images.PAUSES[0]]
    monkeypatch.setattr(packed.os, 'pread', Mock(side_effect=OSError(5, 'input/output')))
    with pytest.raises(UserError, match=r'file system does not answer \(EIO at .*images.tar\)'):
        data.raw(0)


def test_the_command_packs_and_says_what_it_holds(folder, monkeypatch, capsys):
    out = folder.parent / 'out.tar'
    (folder / 'bee/no\nimage.jpg').touch()
    monkeypatch.setattr(sys, 'argv', ['pack.py', str(folder), str(out), '--workers', '0'])
    runpy.run_path(str(TOOL), run_name='__main__')
    said = capsys.readouterr().out
    assert 'holds 5 images of 3 classes' in said and r'left out: bee/no\nimage.jpg is empty' in said
    assert len(Packed(out)) == 5
    with pytest.raises(SystemExit):
        runpy.run_path(str(TOOL), run_name='__main__')
    assert 'exists already' in capsys.readouterr().err
