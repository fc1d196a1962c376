"""Broken images by the hundred: each is read or refused, and none harms the process."""

import logging
import os
import signal
import time
import warnings
from collections.abc import Callable

import pytest

from mmairl.data.images import Reason
from projects.faults import images
from projects.faults.images import fuzz_images, whole_images, write_broken_images


def test_no_broken_image_harms_the_run(tmp_path):
    counts = fuzz_images(150, seed=0, folder=tmp_path)
    assert [counts[kind] for kind in ('escaped', 'misread', 'warnings', 'crashes', 'hangs')] == [0] * 5
    refused = sum(counts.get(reason.phrase, 0) for reason in Reason)
    assert counts['read'] + refused == 150 and counts['read'] > 30 and refused > 50
    assert counts['memory_mib'] < 100  # without the limit on pixels one header of these asks for gigabytes


def test_the_same_seed_writes_the_same_files(tmp_path):
    written = []
    for folder, seed in (('a', 3), ('b', 3), ('c', 4)):
        names = write_broken_images(40, seed, tmp_path / folder)
        written.append({name: (tmp_path / folder / name).read_bytes() for name in names})
    assert written[0] == written[1] and written[0] != written[2]


def test_every_kind_of_whole_image_is_read_before_it_is_broken(tmp_path, monkeypatch):
    monkeypatch.setattr(images, 'KINDS', [lambda content, draw: content] * 1000)
    counts = fuzz_images(5 * len(whole_images(0)), seed=1, folder=tmp_path)
    assert counts['read'] == 5 * len(whole_images(0)) and sum(counts[kind] for kind in ('warnings', 'crashes')) == 0


def misbehave(monkeypatch, tmp_path, act: Callable[[], None]) -> dict[str, int]:
    """The counts where every image is whole and loading the third of ten does this."""
    real = images.FileDataset.raw
    monkeypatch.setattr(images, 'KINDS', [lambda content, draw: content] * 1000)
    monkeypatch.setattr(images.FileDataset, 'raw', lambda data, at: act() if at == 2 else real(data, at))
    return fuzz_images(10, seed=1, folder=tmp_path)


def test_a_crash_is_counted_and_the_rest_is_still_read(monkeypatch, tmp_path):
    counts = misbehave(monkeypatch, tmp_path, lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert (counts['read'], counts['crashes'], counts['hangs']) == (9, 1, 0)


def test_a_hang_is_counted_and_the_rest_is_still_read(monkeypatch, tmp_path):
    monkeypatch.setattr(images, 'PATIENCE', 1.0)
    counts = misbehave(monkeypatch, tmp_path, lambda: time.sleep(10**6))
    assert (counts['read'], counts['crashes'], counts['hangs']) == (9, 0, 1)


@pytest.mark.parametrize(
    'complain',
    [lambda: warnings.warn('one', stacklevel=1), lambda: os.write(2, b'two'), lambda: logging.warning('three')],
    ids=['warning', 'print', 'log'],
)
def test_what_reaches_the_screen_or_escapes_is_counted(monkeypatch, tmp_path, complain):
    def complain_and_fail() -> None:
        complain()
        raise MemoryError

    counts = misbehave(monkeypatch, tmp_path, complain_and_fail)
    assert (counts['read'], counts['escaped'], counts['warnings']) == (9, 1, 1)
