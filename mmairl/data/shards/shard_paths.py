"""Search for the shards that the argument `root` of `Shards` specifies."""

import glob
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from mmairl.data.decode import installed
from mmairl.data.shards import remote
from mmairl.data.subsets import read_lines
from mmairl.errors import UserError, explained

SUFFIXES = ('.tar', '.parquet', '.arrow')
HUB = 'hf:'
BRACES = re.compile(r'\{(\d{1,18})\.\.(\d{1,18})\}')
PART = re.compile(r'(.*-)\d+-of-(\d{1,18})\D*')
MAX_SHARDS = 10**6  # a pattern or a list may specify at most this many shards


def shards_at(root: str | Path | Sequence[str]) -> list[str]:
    """Return the paths of the shards that `root` specifies.

    `root` is a file, a folder, a pattern, a text file (.txt) with one shard per line, a data set of the Hugging Face hub
    (hf:NAME or hf:NAME:SPLIT), or a list of these.
    """
    places = root if isinstance(root, (list, tuple)) else [root]
    names = (name for place in places for name in expand_braces(os.fspath(place)))
    found = (shard for name in names for shard in shards_in(name))
    shards = list(islice(found, MAX_SHARDS + 1))
    if len(shards) > MAX_SHARDS:
        refuse_many(places[0])
    if not shards or len(set(shards)) < len(shards):
        raise UserError(
            'root: the list of shards is empty or contains a shard twice; list at least one shard, and each shard once',
            code='bad-shard-list',
        )
    return shards


def shards_in(place: str) -> Iterator[str]:
    """Yield the shards that one entry of `root` specifies. The entry has no braces: `expand_braces` has replaced them."""
    if place.startswith(HUB) and not remote.is_remote(place):
        yield from hub_shards(place)
        return
    if remote.is_remote(place) or not place.endswith('.txt') or os.path.isdir(place):
        yield from matching_shards(place)
        return
    folder = os.path.dirname(os.path.abspath(place))
    for line in read_lines(place, 'shards'):
        for name in expand_braces(line if remote.is_remote(line) else os.path.join(folder, line)):
            yield from matching_shards(name)


def hub_shards(place: str) -> list[str]:
    """Return the Arrow files of a data set of the Hugging Face hub, `hf:NAME` or `hf:NAME:SPLIT`.

    The default split is train. The library `datasets` downloads the files if they are not on this machine.
    """
    with installed('datasets', 'data sets of the Hugging Face hub'):
        from datasets import load_dataset
    name, _, split = place.removeprefix(HUB).partition(':')
    remedy = 'check the name, the split and the connection'
    with explained(f'{place}: the data set cannot be loaded', remedy, code='bad-hub-dataset'):
        dataset = load_dataset(name, split=split or 'train')
    return [file['filename'] for file in dataset.cache_files]


def matching_shards(place: str) -> list[str]:
    """Return the shards that a file, folder or pattern specifies.

    Raise if there is no shard, or if the names of the shards in a folder show that some are missing.
    """
    is_folder = os.path.isdir(place)
    shards = []
    if remote.is_remote(place):
        is_pattern = '*' in place
        is_folder = not is_pattern and not remote.base_name(place).endswith(SUFFIXES)
        shards = (
            remote.call_remote(place, 'shards', SUFFIXES) if is_folder or is_pattern else [place]
        )
    elif is_folder:
        paths = [entry.path for entry in os.scandir(os.path.abspath(place)) if entry.is_file()]
        shards = sorted(path for path in paths if path.endswith(SUFFIXES))
    elif place.endswith(SUFFIXES):
        # If a file of this name exists, the name is not a pattern, even if it contains special characters such as '*'.
        is_pattern = glob.has_magic(place) and not os.path.exists(place)
        shards = sorted(map(os.path.abspath, glob.glob(place) if is_pattern else [place]))
    if not shards:
        raise UserError(
            f'{place}: no shard found{folders_below(place)}; set a file NAME.tar, NAME.parquet or NAME.arrow, a folder that '
            'contains such files, a pattern such as train-{000000..000146}.tar or train-*.parquet, or a text file NAME.txt '
            'with one shard per line',
            code='no-shards',
        )
    if is_folder:
        refuse_gaps(shards)
    return shards


def folders_below(place: str) -> str:
    """List the first subfolders of a folder that has no shards. The text is part of an error message."""
    if not os.path.isdir(place):
        return ''
    names = sorted(entry.name for entry in os.scandir(place) if entry.is_dir())
    return f' (it contains the folders {", ".join(names[:5])})' if names else ''


def refuse_gaps(shards: Sequence[str]) -> None:
    """Raise if shards are missing. File names such as train-00003-of-00010.parquet state the number of all shards."""
    parts = filter(None, map(PART.fullmatch, shards))
    for (prefix, count), present in Counter(part.groups() for part in parts).items():
        if present < int(count):
            raise UserError(
                f'{prefix}*-of-{count}: {int(count) - present} of the shards are missing; restore these shards, or select the '
                'existing shards by a pattern',
                code='missing-shards',
            )


def expand_braces(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern with braces represents. For example, a{01..03}.tar represents three names."""
    pattern = pattern.removeprefix('file://')
    braces = BRACES.search(pattern)
    if not braces or os.path.exists(pattern):
        yield pattern
        return
    first, last = braces.groups()
    if int(last) - int(first) >= MAX_SHARDS:
        refuse_many(pattern)
    for number in range(int(first), int(last) + 1):
        name = f'{pattern[: braces.start()]}{number:0{len(first)}}{pattern[braces.end() :]}'
        yield from expand_braces(name)


def refuse_many(pattern: object) -> None:
    raise UserError(
        f'{pattern}: more than {MAX_SHARDS} shards; correct the numbers in the pattern, or shorten the list',
        code='many-shards',
    )
