"""Pack a data set into tar archives: mmairl pack data/imagenet/train data/imagenet/train.tar [--shard 1G].

To train from an archive, set train_dataloader.dataset.type=Shards and train_dataloader.dataset.root=data/imagenet/train.tar, or
with --shard root=data/imagenet/train-*.tar. WebDataset can read the archives, too. Unreadable images are left out and listed.
After an interruption, the same command resumes if it writes several archives.

With --statistics, print the mean and standard deviation of each channel for a config, and write nothing.
"""

import argparse
import os
import re
from collections.abc import Sequence
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from mmairl.cli.flags import add_switch, count, fraction, parser_of, positive

if TYPE_CHECKING:
    from mmairl.data.datasets import FileDataset
    from mmairl.data.shards import Shards


def size_in_bytes(text: str) -> int:
    """Convert a size such as 500M or 1G to bytes. The units K, M, G and T are powers of 1024."""
    if not (parts := re.fullmatch(r'(\d+)([KMGT]?)', text)) or not int(parts[1]):
        raise argparse.ArgumentTypeError(
            f'{text!r}: expected a size such as 500M or 1G; correct the size'
        )
    return int(parts[1]) << 10 * ' KMGT'.index(parts[2] or ' ')


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of('pack', __doc__)
    parser.add_argument(
        'source',
        help='read images in the folders SOURCE/CLASS, or in archives (SOURCE is then a file, folder or pattern)',
    )
    parser.add_argument(
        'out',
        type=Path,
        nargs='?',
        metavar='OUT.tar',
        help='write this archive; required without --statistics',
    )
    add_switch(
        parser,
        '--statistics',
        'print the mean and standard deviation of each channel, and write nothing (default: write archives)',
    )
    parser.add_argument(
        '--channels',
        type=positive,
        metavar='N',
        help='read images with N channels (default: RGB)',
    )
    add_switch(parser, '--unlabelled', 'read images at any depth, without classes (default: off)')
    parser.add_argument(
        '--shard',
        type=size_in_bytes,
        metavar='SIZE',
        help='write several archives of about SIZE, such as 1G: OUT-000000.tar, OUT-000001.tar, ... (default: one archive)',
    )
    parser.add_argument(
        '--short-side',
        type=positive,
        metavar='PIXELS',
        help='shrink images whose short side is longer than PIXELS; this changes the training data (default: copy each file)',
    )
    parser.add_argument(
        '--quality',
        type=positive,
        default=90,
        help='--short-side: set the quality of the JPEGs (default: 90)',
    )
    parser.add_argument(
        '--workers',
        type=count,
        help='read and decode in this many processes (default: one per core)',
    )
    parser.add_argument(
        '--max-unreadable',
        type=fraction,
        default=0.01,
        help='fail if more than this fraction of the files cannot be read (default: 0.01)',
    )
    args = parser.parse_args(arguments)
    if (args.out is None) != args.statistics:
        parser.error('give either OUT.tar to write, or --statistics')
    if args.short_side and args.channels:
        parser.error('--short-side writes RGB JPEGs; leave out --short-side or --channels')
    return args


def main(arguments: Sequence[str]) -> None:
    args = parse(arguments)

    # These imports come after the parsing of arguments, because importing torch takes seconds.
    from rich.progress import track

    from mmairl.data.packed import Smaller, pack
    from mmairl.hardware import cores

    workers = cores() if args.workers is None else args.workers
    dataset = source_of(args)
    if args.statistics:
        print_statistics(dataset, args.source, workers)
        return
    smaller = Smaller(args.short_side, args.quality) if args.short_side else None
    packed = left_out = 0
    for path, reason in track(
        pack(dataset, args.out, workers, args.shard, smaller), 'packing', len(dataset)
    ):
        packed += reason is None
        if reason is not None:
            left_out += 1
            print(f'left out: {path} {reason}')
    files = args.out.parent.glob(f'{escape(args.out.stem)}-*.tar') if args.shard else [args.out]
    size = sum(file.stat().st_size for file in files)
    print(f'{args.out}: {packed} images packed, {left_out} left out, {size / 2**30:.2f} GiB in all')


def source_of(args: argparse.Namespace) -> 'FileDataset | Shards':
    from mmairl.data.datasets import ImageFolder, UnlabelledFolder
    from mmairl.data.shards import SUFFIXES, Shards

    settings = dict(max_unreadable=args.max_unreadable, channels=args.channels)
    if not os.path.isdir(args.source) or any(
        name.endswith(SUFFIXES) for name in os.listdir(args.source)
    ):
        return Shards(args.source, **settings)
    folder = UnlabelledFolder if args.unlabelled or args.statistics else ImageFolder
    return folder(args.source, **settings)


def print_statistics(dataset: 'FileDataset | Shards', source: str, workers: int) -> None:
    """Print the mean and standard deviation of each channel as lines for a config."""
    from mmairl.data.statistics import channel_statistics

    measured = channel_statistics(dataset, workers)
    mean, std = (
        ', '.join(f'{value:.5g}' for value in values) for values in (measured.mean, measured.std)
    )
    print(f'# {measured.images} images in {source}; {measured.unreadable} could not be read')
    print(f'model = dict(data_preprocessor=dict(mean=[{mean}], std=[{std}]))')
