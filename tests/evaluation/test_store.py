"""Features on disk: found again, missed when anything changed, whole or not there, and the same by two processes."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import storing
import torch
from PIL import Image
from torch import nn

from mmairl.data.folders import ImageFolder
from mmairl.errors import UserError
from mmairl.evaluation import store
from mmairl.evaluation.features import Extraction, extract
from mmairl.evaluation.store import digest, stored
from projects.faults.disk import TmpFs, small_disk

HOW = Extraction((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), batch_size=4)
VIEW = [[dict(type='Resize', size=16), dict(type='CenterCrop', size=16)]]


@pytest.fixture
def folder(tmp_path):
    for label in 'ab':
        (tmp_path / 'images' / label).mkdir(parents=True)
        for i in range(5):
            pixels = np.random.default_rng(i).integers(0, 255, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / 'images' / label / f'{i}.png')
    return tmp_path / 'images'


def described(folder, view=VIEW) -> dict:
    return dict(type='ImageFolder', root=str(folder), views=view)


def dataset(folder, view=VIEW) -> ImageFolder:
    return ImageFolder(folder, views=view)


def names(root: Path) -> list[str]:
    """What a store holds, but for its locks, which stay and are empty."""
    return [path.name for path in root.iterdir() if path.suffix != '.lock' or path.stat().st_size]


def backbone(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()


def test_what_is_stored_is_what_is_extracted_and_is_not_extracted_again(folder, tmp_path, monkeypatch):
    wanted = extract(backbone(), dataset(folder), HOW)
    found = stored(tmp_path / 'f', backbone(), dataset(folder), described(folder), HOW)
    assert torch.equal(found.x, wanted.x) and torch.equal(found.y, wanted.y)
    monkeypatch.setattr(store, '_fill', lambda *_: pytest.fail('extracted again'))
    again = stored(tmp_path / 'f', backbone(), dataset(folder), described(folder), HOW)
    assert torch.equal(again.x, wanted.x)


def test_changed_weights_transform_statistics_or_data_miss(folder):
    base = digest(backbone(), dataset(folder), described(folder), HOW)
    assert digest(backbone(), dataset(folder), described(folder), HOW) == base
    moved = backbone()
    moved[1].running_mean += 1e-3
    other = [[dict(type='Resize', size=18), dict(type='CenterCrop', size=16)]]
    assert digest(backbone(1), dataset(folder), described(folder), HOW) != base
    assert digest(moved, dataset(folder), described(folder), HOW) != base
    assert digest(None, dataset(folder), described(folder), HOW) != base
    assert digest(backbone(), dataset(folder, other), described(folder, other), HOW) != base
    how = Extraction((0.4, 0.5, 0.5), HOW.std)
    assert digest(backbone(), dataset(folder), described(folder), how) != base
    time.sleep(0.01)
    (folder / 'a' / '3.png').write_bytes((folder / 'b' / '4.png').read_bytes())
    assert digest(backbone(), dataset(folder), described(folder), HOW) != base


def test_relabelled_and_missing_images_miss(folder):
    base = digest(backbone(), dataset(folder), described(folder), HOW)
    os.rename(folder / 'a' / '3.png', folder / 'b' / '3b.png')
    assert digest(backbone(), dataset(folder), described(folder), HOW) != base


def test_an_interrupted_extraction_leaves_nothing_and_the_next_one_works(folder, tmp_path, monkeypatch):
    original = Extraction.batches

    def break_off(self, *args, **kwargs):
        yield next(original(self, *args, **kwargs))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Extraction, 'batches', break_off)
        with pytest.raises(KeyboardInterrupt):
            stored(tmp_path / 'f', backbone(), dataset(folder), described(folder), HOW)
    assert names(tmp_path / 'f') == []
    # what a killed process leaves is not taken for an entry, and is cleared away
    name = digest(backbone(), dataset(folder), described(folder), HOW)
    (tmp_path / 'f' / f'.{name}.1.part').mkdir()
    stored(tmp_path / 'f', backbone(), dataset(folder), described(folder), HOW)
    assert names(tmp_path / 'f') == [name]


def test_nan_features_are_refused_with_the_images_index_and_not_stored(folder, tmp_path):
    class Breaks(nn.Module):
        def forward(self, images):
            out = images.mean(dim=(2, 3))
            out[-1] = torch.nan
            return out

    with pytest.raises(UserError, match='NaN or infinite features, image 3 first'):
        stored(tmp_path / 'f', Breaks(), dataset(folder), described(folder), HOW)
    assert names(tmp_path / 'f') == []


def start(root: Path, *args: object) -> subprocess.Popen:
    command = [sys.executable, storing.__file__, str(root), *map(str, args)]
    return subprocess.Popen(command, env={**os.environ, 'OMP_NUM_THREADS': '1'}, stderr=subprocess.PIPE, text=True)


@pytest.mark.timeout(300)
@pytest.mark.parametrize('processes', [1, 2])
def test_of_two_runs_at_once_one_extracts_and_the_other_waits_for_it_and_reads(tmp_path, run_processes, processes):
    """The second, of one process or two, comes while the first extracts, and stays well until that has gone on."""
    first = start(tmp_path / 'f', 'first', tmp_path / 'go')
    storing.wait_for(tmp_path / 'first.extracts')
    let_go = subprocess.Popen([sys.executable, '-c', LET_GO, str(tmp_path / 'second.starts'), str(tmp_path / 'go')])
    run_processes(processes, storing.__file__, tmp_path / 'f', 'second')
    _, said = first.communicate(timeout=120)
    assert first.returncode == 0 and let_go.wait() == 0, said
    assert not (tmp_path / 'second.extracts').exists()
    wanted = extract(storing.Waits(tmp_path / 'here.extracts'), storing.Ramp(), storing.HOW)
    for name in ('first.0', *(f'second.{rank}' for rank in range(processes))):
        x, y = torch.load(tmp_path / f'{name}.pth')
        assert torch.equal(x, wanted.x) and torch.equal(y, wanted.y)
    assert len(names(tmp_path / 'f')) == 1


LET_GO = """
import sys, time
from pathlib import Path
seen, go = map(Path, sys.argv[1:])
while not seen.exists():
    time.sleep(0.01)
time.sleep(2)  # in which the second run looks, and with its patience of 0.2 s waits several times
go.touch()
"""


@pytest.mark.timeout(300)
def test_a_run_that_is_killed_while_it_extracts_keeps_nobody_waiting(tmp_path):
    killed = start(tmp_path / 'f', 'killed', tmp_path / 'never')
    storing.wait_for(tmp_path / 'killed.extracts')
    killed.kill()
    killed.communicate(timeout=60)
    assert len(names(tmp_path / 'f')) == 1  # what it has begun
    assert len(storing.features(tmp_path / 'f', 'next').x) == 10
    assert not any(name.endswith('.part') for name in names(tmp_path / 'f'))


def test_a_store_that_cannot_be_locked_is_one_sentence(tmp_path):
    (tmp_path / 'f').write_text('a file')
    with pytest.raises(UserError, match='features cannot be stored in .*f .*name another folder'):
        storing.features(tmp_path / 'f', 'here')


def test_no_room_for_all_features_is_one_sentence_before_any_is_written(tmp_path, monkeypatch):
    asked = []

    def full(_: int, offset: int, length: int) -> None:
        asked.append((offset % 64, length))
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(os, 'posix_fallocate', full)
    with pytest.raises(
        UserError, match='the disk is full: features could not be stored in .*; free some space or name'
    ):
        storing.features(tmp_path / 'f', 'here')
    assert asked == [(0, 10 * 3 * 4)] and names(tmp_path / 'f') == []


def test_a_file_system_that_sets_no_room_aside_is_written_to_all_the_same(tmp_path, monkeypatch):
    def cannot(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, 'Operation not supported')

    monkeypatch.setattr(os, 'posix_fallocate', cannot)
    assert len(storing.features(tmp_path / 'f', 'here').x) == 10


FULL_DISK = """
import sys
from pathlib import Path
import storing
from mmairl.engine.launch import one_sentence_errors
storing.Waits.forward = lambda self, images: images.mean((2, 3)).repeat(1, 300_000)  # 36 MB, of 24
one_sentence_errors(lambda: storing.features(Path(sys.argv[1]), 'here'))()
"""


@pytest.mark.timeout(300)
def test_a_disk_that_is_full_ends_a_run_in_a_sentence_and_not_by_a_signal(tmp_path):
    with small_disk(tmp_path / 'disk') as disk:
        if not isinstance(disk, TmpFs):
            pytest.skip('only root can mount a file system')
        path = os.pathsep.join([str(Path(storing.__file__).parent), str(Path(__file__).parents[2])])
        done = subprocess.run(
            [sys.executable, '-c', FULL_DISK, str(disk.folder / 'f')],
            env={**os.environ, 'PYTHONPATH': path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2 and done.stderr.startswith('error: the disk is full: features could not'), done
        assert names(disk.folder / 'f') == []
