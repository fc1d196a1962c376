"""Put a data set into tar archives: tools/pack.py data/imagenet/train data/imagenet/train.tar [--shard 1G].

Train from them with train_dataloader.dataset.type=Shards and train_dataloader.dataset.root=data/imagenet/train.tar, or with
--shard root=data/imagenet/train-*.tar; WebDataset reads them, too. Every image is decoded once on the way; those that cannot
be read are left out and named. A killed packing of several shards goes on with the same command.

With --statistics nothing is written: mean and std of each channel are printed for a config.
"""

import argparse
import os
import re
from pathlib import Path

from rich.progress import track

from mmairl.cli.flags import count, fraction, positive
from mmairl.data.datasets import FileDataset, ImageFolder, UnlabelledFolder
from mmairl.data.packed import Smaller, pack
from mmairl.data.shards.dataset import Shards
from mmairl.data.shards.index import SUFFIXES
from mmairl.data.statistics import statistics
from mmairl.errors import one_sentence_errors, printable
from mmairl.hardware import cores


def size_in_bytes(text: str) -> int:
    """Bytes, as in '500M' or '1G', by powers of 1024."""
    if not (parts := re.fullmatch(r'(\d+)([KMGT]?)', text)) or not int(parts[1]):
        raise argparse.ArgumentTypeError(f'{text!r} is no size; give one such as 500M or 1G')
    return int(parts[1]) << 10 * ' KMGT'.index(parts[2] or ' ')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('source', help='images in SOURCE/CLASS/, or shards of others by any name that Shards takes')
    parser.add_argument('out', type=Path, nargs='?', help='the archive to write, OUT.tar')
    parser.add_argument('--statistics', action='store_true', help='print mean and std, and write nothing')
    parser.add_argument(
        '--channels', type=positive, help='read images as they are stored, with so many channels, and not as RGB'
    )
    parser.add_argument('--unlabelled', action='store_true', help='images at any depth, without classes')
    parser.add_argument(
        '--shard', type=size_in_bytes, help='the size of an archive: OUT-000000.tar, OUT-000001.tar, ...'
    )
    parser.add_argument(
        '--short-side', type=positive, help='make larger images smaller, which changes what is trained on'
    )
    parser.add_argument('--quality', type=positive, default=90, help='of the JPEGs that --short-side makes')
    parser.add_argument('--workers', type=count, default=cores(), help='processes that read and decode')
    parser.add_argument(
        '--max-unreadable', type=fraction, default=0.01, help='the fraction of files that may be left out'
    )
    args = parser.parse_args()
    if (args.out is None) != args.statistics:
        parser.error('give either OUT.tar to write, or --statistics')
    if args.short_side and args.channels:
        parser.error('--short-side makes JPEGs, which are RGB; leave it out, or --channels')
    return args


def source_of(args: argparse.Namespace) -> FileDataset | Shards:
    how = dict(max_unreadable=args.max_unreadable, channels=args.channels)
    if not os.path.isdir(args.source) or any(name.endswith(SUFFIXES) for name in os.listdir(args.source)):
        return Shards(args.source, **how)
    return (UnlabelledFolder if args.unlabelled or args.statistics else ImageFolder)(args.source, **how)


def print_statistics(dataset: FileDataset | Shards, args: argparse.Namespace) -> None:
    """As a config has them."""
    measured = statistics(dataset, args.workers)
    mean, std = (', '.join(f'{value:.5g}' for value in values) for values in (measured.mean, measured.std))
    print(f'# of {measured.images} images in {args.source}; {measured.unreadable} could not be read')
    print(f'model = dict(data_preprocessor=dict(mean=[{mean}], std=[{std}]))')


@one_sentence_errors
def main() -> None:
    args = parse_args()
    dataset = source_of(args)
    if args.statistics:
        print_statistics(dataset, args)
        return
    smaller = Smaller(args.short_side, args.quality) if args.short_side else None
    packed = left_out = 0
    for path, reason in track(pack(dataset, args.out, args.workers, args.shard, smaller), 'packing', len(dataset)):
        packed += reason is None
        if reason is not None:
            left_out += 1
            print(f'left out: {printable(path)} {reason}')
    files = args.out.parent.glob(f'{args.out.stem}-*.tar') if args.shard else [args.out]
    size = sum(file.stat().st_size for file in files)
    print(f'{args.out}: {packed} images packed, {left_out} left out, {size / 2**30:.2f} GiB in all')


if __name__ == '__main__':
    main()
