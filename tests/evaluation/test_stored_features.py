"""Features in one file: read again, whole or not there, filled once by any number of runs and processes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import storing
import torch
from PIL import Image
from torch import nn

from mmairl.data.folders import ImageFolder
from mmairl.errors import UserError
from mmairl.evaluation import features
from mmairl.evaluation.features import Extraction, Features, extract, read_rows, stored
from projects.faults.disk import TmpFs

VIEW = [[dict(type='Resize', size=16), dict(type='CenterCrop', size=16)]]


@pytest.fixture
def folder(tmp_path) -> Path:
    for label in 'ab':
        (tmp_path / 'images' / label).mkdir(parents=True)
        for i in range(5):
            pixels = np.random.default_rng(i).integers(0, 255, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / 'images' / label / f'{i}.png')
    return tmp_path / 'images'


def backbone() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()


def in_store(root: Path) -> list[str]:
    """The files, but for the locks, which stay and are empty."""
    return [path.name for path in root.iterdir() if path.suffix != '.lock' or path.stat().st_size]


def test_what_is_stored_is_what_is_extracted_and_is_not_extracted_again(folder, tmp_path, monkeypatch):
    dataset = ImageFolder(folder, views=VIEW)
    wanted = extract(backbone(), dataset, storing.HOW)
    found = stored(tmp_path / 'f/key.npy', backbone(), dataset, storing.HOW)
    assert torch.equal(found.x, wanted.x) and torch.equal(found.y, wanted.y) and found.unreadable == ()
    monkeypatch.setattr(features, '_fill', lambda *_: pytest.fail('extracted again'))
    assert torch.equal(stored(tmp_path / 'f/key.npy', backbone(), dataset, storing.HOW).x, wanted.x)


def test_unreadable_images_have_no_row_and_are_listed(folder, tmp_path):
    dataset = ImageFolder(folder, views=VIEW)
    whole = extract(backbone(), dataset, storing.HOW)
    for name in ('a/4.png', 'b/1.png'):
        (folder / name).write_bytes(b'')
    kept = [0, 1, 2, 3, 5, 7, 8, 9]
    broken = ImageFolder(folder, views=VIEW)
    for found in (
        extract(backbone(), broken, storing.HOW),
        stored(tmp_path / 'k.npy', backbone(), broken, storing.HOW),
    ):
        assert found.unreadable == (4, 6)
        assert torch.equal(found.x, whole.x[kept]) and torch.equal(found.y, whole.y[kept])


def test_an_interrupted_extraction_leaves_nothing_and_the_next_one_works(tmp_path, monkeypatch):
    original = Extraction.batches

    def break_off(self, *args, **kwargs):
        yield next(original(self, *args, **kwargs))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Extraction, 'batches', break_off)
        with pytest.raises(KeyboardInterrupt):
            storing.stored(tmp_path / 'f', 'cut')
    assert in_store(tmp_path / 'f') == []
    (tmp_path / 'f/.key.npy.unfinished').write_bytes(b'1' * 5000)  # of a killed run
    assert len(storing.stored(tmp_path / 'f', 'next').x) == 10
    assert in_store(tmp_path / 'f') == ['key.npy']


def test_nan_features_are_refused_with_the_images_index_and_not_stored(tmp_path):
    class Breaks(nn.Module):
        def forward(self, images):
            return images.mean(dim=(2, 3)).masked_fill(images.mean((1, 2, 3))[:, None] > 5 / 255 * 4 - 2, torch.nan)

    with pytest.raises(UserError, match='image 6 has NaN or infinite features'):
        stored(tmp_path / 'f/key.npy', Breaks(), storing.Ramp(), storing.HOW)
    assert in_store(tmp_path / 'f') == []


@pytest.mark.parametrize('content', ['cut', 'other rows', 'no array'])
def test_a_damaged_file_is_one_sentence(tmp_path, content):
    storing.stored(tmp_path, 'first')
    path = tmp_path / 'key.npy'
    if content == 'other rows':
        np.save(path, np.zeros((9, 3), np.float32))
    else:
        path.write_bytes(path.read_bytes()[:150] if content == 'cut' else b'text')
    with pytest.raises(UserError, match=r'the features in .*key.npy cannot be read .* remove the file'):
        read_rows(path, 10)


def start(root: Path, *args: object) -> subprocess.Popen:
    command = [sys.executable, storing.__file__, str(root), *map(str, args)]
    return subprocess.Popen(command, env={**os.environ, 'OMP_NUM_THREADS': '1'}, stderr=subprocess.PIPE, text=True)


def test_of_two_runs_at_once_one_extracts_and_the_other_waits_for_it_and_reads(tmp_path, run_processes):
    """The second, of two processes, comes while the first extracts, and waits until that has ended."""
    first = start(tmp_path / 'f', 'first', tmp_path / 'go')
    storing.wait_for(tmp_path / 'first.extracts')
    let_go = subprocess.Popen([sys.executable, '-c', LET_GO, str(tmp_path / 'second.starts'), str(tmp_path / 'go')])
    run_processes(2, storing.__file__, tmp_path / 'f', 'second')
    _, said = first.communicate(timeout=120)
    assert first.returncode == 0 and let_go.wait() == 0, said
    assert not (tmp_path / 'second.extracts').exists()
    wanted = extract(storing.Waits(tmp_path / 'here.extracts'), storing.Ramp(), storing.HOW)
    for name in ('first.0', 'second.0', 'second.1'):
        x, y = torch.load(tmp_path / f'{name}.pth')
        assert torch.equal(x, wanted.x) and torch.equal(y, wanted.y)
    assert in_store(tmp_path / 'f') == ['key.npy']


LET_GO = """
import sys, time
from pathlib import Path
seen, go = map(Path, sys.argv[1:])
while not seen.exists():
    time.sleep(0.01)
time.sleep(1)  # in which the second run waits
go.touch()
"""


def test_two_processes_fill_the_file_as_one_does(tmp_path, run_processes):
    run_processes(2, storing.__file__, tmp_path / 'two', 'two')
    storing.stored(tmp_path / 'one', 'one')
    assert (tmp_path / 'two/key.npy').read_bytes() == (tmp_path / 'one/key.npy').read_bytes()


def test_a_run_that_is_killed_while_it_extracts_keeps_nobody_waiting(tmp_path):
    killed = start(tmp_path / 'f', 'killed', tmp_path / 'never')
    storing.wait_for(tmp_path / 'killed.extracts')
    killed.kill()
    killed.communicate(timeout=60)
    assert in_store(tmp_path / 'f') == ['.key.npy.unfinished']
    assert len(storing.stored(tmp_path / 'f', 'next').x) == 10
    assert in_store(tmp_path / 'f') == ['key.npy']


def test_a_store_that_cannot_be_locked_is_one_sentence(tmp_path):
    (tmp_path / 'f').write_text('a file')
    with pytest.raises(UserError, match=r'f/key.npy could not be written: .*; check the folder'):
        storing.stored(tmp_path / 'f', 'here')


FULL_DISK = """
import sys
from pathlib import Path
import storing
from mmairl.errors import one_sentence_errors
storing.Waits.forward = lambda self, images: images.mean((2, 3)).repeat(1, 300_000)  # 36 MB, of 24
one_sentence_errors(lambda: storing.stored(Path(sys.argv[1]), 'here'))()
"""


@pytest.mark.slow
def test_a_disk_that_is_full_ends_a_run_in_a_sentence_and_not_by_a_signal(tmp_path):
    try:
        disk = TmpFs(tmp_path / 'disk')
    except UserError:
        pytest.skip('only root can mount a file system')
    path = os.pathsep.join([str(Path(storing.__file__).parent), str(Path(__file__).parents[2])])
    with disk:
        command = [sys.executable, '-c', FULL_DISK, str(disk.folder / 'f')]
        done = subprocess.run(command, env={**os.environ, 'PYTHONPATH': path}, capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.startswith('error: the disk is full: '), done
        assert in_store(disk.folder / 'f') == []


def test_features_are_plain_rows(tmp_path):
    found = storing.stored(tmp_path, 'here')
    assert isinstance(found, Features) and found.x.dtype == torch.float32
    np.testing.assert_allclose(found.x[3], np.full(3, (3 / 255 - 0.5) / 0.25), rtol=1e-5)
