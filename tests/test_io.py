"""Atomic writes, writes in the background, and reads of small files, with the errors of each."""

import errno
import os
import platform
import subprocess
import threading
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
import torch
from harness import resume as resuming
from harness.errors import raises_code

from mmairl.errors import UserError
from mmairl.io import (
    BackgroundWriter,
    Declared,
    appending,
    output,
    parse_yaml,
    read_bytes,
    read_json,
    read_text,
    read_yaml,
    replacing,
    write_json,
    write_text,
)


def test_background_writer_raises_an_error_once():
    writer, gate, results = BackgroundWriter(), threading.Event(), []

    def slow() -> None:
        gate.wait(10)
        results.append('first')
        raise UserError('the disk is full')

    writer.start(slow)
    writer.check()
    assert results == []
    gate.set()
    with pytest.raises(UserError, match='the disk is full'):
        writer.start(lambda: results.append('never'))
    writer.start(lambda: results.append('second'))
    writer.finish()
    writer.check()
    assert results == ['first', 'second']


@pytest.mark.parametrize(
    'number, code',
    [(errno.EDQUOT, 'disk-full'), (errno.EACCES, 'cannot-write')],
)
def test_failed_write_keeps_the_older_file(tmp_path, number, code):
    path = tmp_path / 'epoch_2.pth'
    path.write_text('older')
    with raises_code(code, 'epoch_2.pth'), replacing(path) as beside:
        beside.write_text('half')
        raise OSError(number, os.strerror(number), str(beside))
    assert path.read_text() == 'older' and list(tmp_path.iterdir()) == [path]
    write_json(path, dict(a=[1, 'ä']))
    assert read_json(path) == dict(a=[1, 'ä']) and list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError), replacing(path):
        Path('/not/there').read_text()


def test_unwritable_output_stays_unchanged(tmp_path):
    file, pipe = tmp_path / 'file', tmp_path / 'pipe'
    file.write_text('content')
    os.mkfifo(pipe)
    (tmp_path / 'link').symlink_to(file)
    for path, source, sentence in (
        (tmp_path, None, 'found a folder'),
        (pipe, None, 'found a device or pipe'),
        (tmp_path / 'link', file, 'is also an input'),
        (tmp_path / ('a' * 300), None, 'cannot be written .File name too long'),
    ):
        with pytest.raises(UserError, match=sentence) as caught, replacing(output(path, source)) as beside:
            beside.write_text('new')
        assert '\n' not in str(caught.value)
    assert file.read_text() == 'content' and pipe.is_fifo() and not list(tmp_path.glob('.*'))


def test_only_stale_temporary_files_are_removed(tmp_path):
    ended = subprocess.Popen(['true'])
    ended.wait()
    stale, running, other = (
        tmp_path / f'.out.txt.{node}.{process}.tmp'
        for node, process in ((platform.node(), ended.pid), (platform.node(), os.getppid()), ('other', ended.pid))
    )
    for file in (stale, running, other):
        file.touch()
    write_text(tmp_path / 'out.txt', 'new')
    assert sorted(tmp_path.iterdir()) == sorted([running, other, tmp_path / 'out.txt'])


def test_links_are_never_followed(tmp_path):
    (tmp_path / 'own.txt').write_text('own')
    for name in ('out.txt', f'.out.txt.{platform.node()}.{os.getpid()}.tmp', 'log.txt'):
        (tmp_path / name).symlink_to(tmp_path / 'own.txt')
    write_text(tmp_path / 'out.txt', 'new')
    with pytest.raises(OSError, match='symbolic'):
        appending(tmp_path / 'log.txt')
    assert (tmp_path / 'own.txt').read_text() == 'own' and (tmp_path / 'out.txt').read_text() == 'new'
    assert not (tmp_path / 'out.txt').is_symlink()


@pytest.mark.parametrize('content', [b'{"a": ', b'\xff\xfe', b'[' * 100_000, None])
def test_incomplete_json_raises(tmp_path, content):
    path = tmp_path / 'a.json'
    path.write_bytes(content) if content is not None else os.mkfifo(path)
    with pytest.raises(UserError, match='not a complete JSON file|expected a regular file|not text in UTF-8'):
        read_json(path)


def test_old_checkpoint_is_removed_after_the_new_one(tmp_path, monkeypatch):
    """The disk is full when the third checkpoint is written. Both earlier checkpoints are kept."""
    save, paths = torch.save, []

    def fill_up(checkpoint: dict, path: Path) -> None:
        save(checkpoint, path)
        paths.append(path)
        if len(paths) == 3:
            raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(torch, 'save', fill_up)
    cfg = resuming.config('views_of_the_batch', str(tmp_path))
    cfg.default_hooks.checkpoint.update(interval=2, max_keep_ckpts=2)
    with raises_code('disk-full'):
        resuming.run(cfg)
    assert sorted(path.name for path in tmp_path.glob('*.pth*')) == ['iter_2.pth', 'iter_4.pth']
    assert not list(tmp_path.glob('.*.tmp'))


class Part(Declared):
    name: str
    sizes: tuple[int, ...] = ()
    by_name: dict[str, list[float]] = {}
    either: str | list[str] | None = None


class Whole(Declared):
    parts: list[Part] = []
    part: Part | None = None
    share: Annotated[float, msgspec.Meta(gt=0)] = 1.0


@pytest.mark.parametrize('content, sentence', [
    ('[', 'not a complete JSON file (JSONDecodeError: Expecting value'),
    ('[' * 10**5, 'not a complete JSON file (RecursionError: maximum recursion'),
    ('[]', ': expected `object`, got `array`'),
    ('{"parts": [{"name": "a"}, {"sizes": "c"}]}', 'parts[1].sizes: expected `array`, got `str`'),
    ('{"parts": [{"name": "a", "sizes": [1, 2.5]}]}', ': parts[0].sizes[1]: expected `int`, got `float`'),
    ('{"part": {"name": "a", "by_name": {"x": [1], "y": [1, null]}}}', 'part.by_name[...][1]: expected `float`, got `null`'),
    ('{"part": {"name": true}}', ': part.name: expected `str`, got `bool`'),
    ('{"part": {"name": "a", "either": 3}}', ': part.either: expected `str | array | null`, got `int`'),
    ('{"part": {"name": "a", "size": []}}', ": part: object contains unknown field `size`; did you mean 'sizes'?"),
    ('{"part": {}}', ": part: object missing required field `name`"),
    ('{"share": 0}', ': share: expected `float` > 0.0'),
])  # fmt: skip
def test_wrong_type_raises_with_its_place(tmp_path, content, sentence):
    (path := tmp_path / 'whole.json').write_text(content)
    with pytest.raises(UserError) as error:
        read_json(path, Whole)
    assert str(error.value).startswith(str(path)) and sentence in str(error.value)


def test_yaml_bombs_and_other_keys_raise(tmp_path):
    path = tmp_path / 'many.yaml'
    for doubled, sentence in (('{<<: [*a, *a]}', 'tag:yaml.org,2002:merge'), ('[*a, *a]', 'too many values')):
        lines = ['a0: &a0 {x: 1}', *(f'a{n}: &a{n} {doubled}'.replace('*a', f'*a{n - 1}') for n in range(1, 40))]
        path.write_text('\n'.join(lines))
        with pytest.raises(UserError, match=sentence):
            read_yaml(path)
    path.write_text('part: {name: a, by_name: {3: []}}')
    with pytest.raises(UserError, match='key in part.by_name: expected `str`, got `int`'):
        read_yaml(path, Whole)


def no_file(path: Path) -> None:
    path.unlink()


def sparse(path: Path) -> None:
    with path.open('wb') as file:
        file.truncate(2**40)


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to('/dev/zero')


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


UNREADABLE = {
    'no-file': no_file,
    'file-too-large': sparse,
    'not-a-regular-file': device,
    'not-a-regular-file ': pipe,
    'unreadable-file': folder,
}


@pytest.mark.parametrize('reader', [read_bytes, read_text, read_json, read_yaml])
@pytest.mark.parametrize('code', UNREADABLE)
def test_file_without_end_raises(tmp_path, reader, code):
    path = tmp_path / 'file'
    path.touch()
    UNREADABLE[code](path)
    with raises_code(code.strip()):
        reader(path)


def test_file_at_the_limit_is_read(tmp_path):
    path = tmp_path / 'file'
    path.write_bytes(b'12345')
    assert read_bytes(path, 5) == b'12345'
    with raises_code('file-too-large'):
        read_bytes(path, 4)


def test_content_beyond_the_stated_size_raises():
    """The system reports a size of 0 for files in /proc."""
    assert read_bytes('/proc/self/status').startswith(b'Name:')
    with raises_code('file-too-large'):
        read_bytes('/proc/self/status', 10)


def test_text_has_plain_line_ends_and_no_mark(tmp_path):
    path = tmp_path / 'file'
    path.write_bytes('\ufeffä\r\nb\rc'.encode())
    assert read_text(path, encoding='utf-8-sig') == 'ä\nb\nc'
    path.write_bytes(b'\xff')
    assert read_text(path, errors='replace') == '\ufffd'
    with raises_code('not-text'):
        read_text(path)


@pytest.mark.parametrize(
    'content',
    ['1' + ':1' * 1000, '- &a [1]\n' + '- *a\n' * 50_000, '[' * 10_000, '{a: ' * 10_000, '? - ' * 10_000],
    ids=['long number', 'aliases', 'lists', 'mappings', 'keys'],
)
def test_hostile_yaml_raises(tmp_path, content):
    path = tmp_path / 'file.yaml'
    path.write_text(content)
    with raises_code('not-yaml'):
        read_yaml(path)


def test_long_yaml_is_not_parsed(tmp_path):
    path = tmp_path / 'file.yaml'
    path.write_text('- 1\n' * 70_000)
    with raises_code('file-too-large'):
        read_yaml(path)
    with pytest.raises(OverflowError):
        parse_yaml(path.read_text())
