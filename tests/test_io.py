"""Atomic writes, and reads of JSON and YAML, with the errors of each."""

import errno
import os
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from harness.errors import raises_code

from mmairl.io import (
    Declared,
    output,
    read_json,
    read_text,
    read_yaml,
    replacing,
    write_json,
    write_text,
)


@pytest.mark.parametrize(
    'number, code', [(errno.ENOSPC, 'disk-full'), (errno.EACCES, 'cannot-write')]
)
def test_failed_write_keeps_the_older_file(tmp_path, number, code):
    path = tmp_path / 'epoch_2.pth'
    path.write_text('older')
    with raises_code(code, 'epoch_2.pth'), replacing(path) as temporary:
        temporary.write_text('half')
        raise RuntimeError from OSError(number, os.strerror(number), str(temporary))
    with pytest.raises(KeyError), replacing(path) as temporary:
        temporary.write_text('half')
        raise KeyError
    assert path.read_text() == 'older' and list(tmp_path.iterdir()) == [path]


def test_written_file_appears_complete(tmp_path):
    path = tmp_path / 'new' / 'a.json'
    with replacing(path) as temporary:
        temporary.write_text('{}')
        assert not path.exists()
    write_json(path, dict(a=[1, 'ä', float('inf')]))
    assert read_json(path) == dict(a=[1, 'ä', float('inf')]) and list(path.parent.iterdir()) == [
        path
    ]
    assert read_text(write_text(path, 'caf\udce9')) == 'caf\\udce9'


class Part(Declared):
    name: str
    sizes: tuple[int, ...] = ()


class Whole(Declared):
    parts: list[Part] = []
    by_name: dict[str, int] = {}
    share: Annotated[float, msgspec.Meta(gt=0)] = 1.0


@pytest.mark.parametrize(
    'content, code, hint',
    [
        ('{"parts": ', 'not-json', ''),
        ('[' * 100_000, 'not-json', ''),
        ('\xff', 'unreadable-file', ''),
        (None, 'unreadable-file', ''),
        ('[]', 'wrong-content', ''),
        (
            '{"parts": [{"name": "a"}, {"name": "b", "sizes": "c"}]}',
            'wrong-content',
            'parts.1..sizes',
        ),
        ('{"parts": [{"name": "a", "size": []}]}', 'wrong-content', 'size'),
        ('{"parts": [{}]}', 'wrong-content', 'name'),
        ('{"share": 0}', 'wrong-content', 'share'),
    ],
)
def test_wrong_file_names_the_place(tmp_path, content, code, hint):
    path = tmp_path / 'whole.json'
    if content is not None:
        path.write_text(content, 'latin1')
    with raises_code(code, hint):
        read_json(path, Whole)


def test_yaml_is_data_with_types(tmp_path):
    path = tmp_path / 'whole.yaml'
    path.write_text('{parts: [{name: a, sizes: [1, 2]}], share: 1e-3, by_name: {"3": 4}}')
    assert read_yaml(path, Whole) == Whole([Part('a', (1, 2))], {'3': 4}, 1e-3)
    path.write_text(f'!!python/object/apply:os.mkdir ["{tmp_path / "canary"}"]')
    with raises_code('not-yaml'):
        read_yaml(path)
    assert not (tmp_path / 'canary').exists()


def test_output_is_neither_folder_nor_input(tmp_path):
    file = write_text(tmp_path / 'file', 'content')
    (tmp_path / 'link').symlink_to(file)
    for path, source, code in (
        (tmp_path, None, 'not-a-file'),
        (tmp_path / 'link', file, 'output-is-input'),
    ):
        with raises_code(code):
            output(path, source)
    assert output(file, tmp_path / 'no_such_file') == Path(file)
