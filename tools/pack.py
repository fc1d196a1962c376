"""Put a folder of images into one file: tools/pack.py data/imagenet/train data/imagenet/train.tar.

Train from it with train_dataloader.dataset.type=Packed and train_dataloader.dataset.root=data/imagenet/train.tar. Every
image is decoded once on the way; those that cannot be read are left out and named.
"""

import argparse
from pathlib import Path

from rich.progress import track

from mmairl.data.folders import ImageFolder, UnlabelledFolder
from mmairl.data.packed import pack
from mmairl.errors import UserError, one_sentence_errors, printable
from mmairl.flags import count, fraction
from mmairl.machine import cores


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', help='images in FOLDER/CLASS/')
    parser.add_argument('out', type=Path, help='the archive to write, OUT.tar')
    parser.add_argument('--unlabelled', action='store_true', help='images at any depth, without classes')
    parser.add_argument('--workers', type=count, default=cores(), help='processes that read and decode')
    parser.add_argument(
        '--max-unreadable', type=fraction, default=0.01, help='the fraction of files that may be left out'
    )
    return parser.parse_args()


@one_sentence_errors
def main() -> None:
    args = parse_args()
    if args.out.exists():
        raise UserError(f'{args.out} exists already; remove it, or give another name')
    kind = UnlabelledFolder if args.unlabelled else ImageFolder
    dataset = kind(args.folder, max_unreadable=args.max_unreadable)
    left_out = 0
    for path, reason in track(pack(dataset, args.out, args.workers), 'packing', len(dataset)):
        if reason is not None:
            left_out += 1
            print(f'left out: {printable(path)} {reason}')
    size = args.out.stat().st_size / 2**30
    print(f'{args.out} holds {len(dataset) - left_out} images of {len(dataset.classes)} classes, {size:.2f} GiB')


if __name__ == '__main__':
    main()
