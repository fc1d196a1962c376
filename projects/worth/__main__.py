"""Say whether pre-training pays on your images: a folder, a few labels, a page with the answer.

python -m projects.worth IMAGES --labels labels.csv --weights torchvision:resnet50 --minutes 60 [--plan]
"""

if __name__ == '__main__':
    from mmairl.cli import prepare

    prepare()  # before the imports below, which take seconds

import argparse

from mmairl.cli.flags import ConfigOptions, above_zero, count, positive, seed
from mmairl.data.splits import Groups
from mmairl.errors import one_sentence_errors
from mmairl.signals import Stopped
from projects.worth.worth import Worth, worth


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('images', help='a folder of images at any depth')
    parser.add_argument(
        '--labels',
        help='a CSV: names of images, then their classes (default: the folders are classes)',
    )
    parser.add_argument('--column', help='the head of its column of classes (default: the second)')
    parser.add_argument(
        '--weights', nargs='+', default=[], help='released networks: torchvision:resnet50, or files'
    )
    parser.add_argument(
        '--method', default='mocov2plus', help='of the own pre-training, such as byol or simclr'
    )
    parser.add_argument(
        '--minutes', type=above_zero, help='what it may take; it chooses size, epochs and draws'
    )
    parser.add_argument(
        '--size', type=positive, help="the side of the crops (default: the images', 224 at most)"
    )
    parser.add_argument('--epochs', type=positive, help='of the own pre-training (default: 100)')
    parser.add_argument(
        '--groups',
        type=groups,
        help="a regular expression whose match in an image's name is its patient, flight, ...; or CSV:COLUMN of these",
    )
    parser.add_argument('--batch', type=positive, help='images in a step of pre-training')
    parser.add_argument('--workers', type=count, help='processes that load images')
    parser.add_argument(
        '--channels', type=positive, help='of images that are read as they are stored'
    )
    parser.add_argument(
        '--seed',
        type=seed,
        default=0,
        help='of the split, the draws of labels and the pre-training',
    )
    parser.add_argument(
        '--plan', action='store_true', help='measure the speed, and say how long it will take'
    )
    parser.add_argument(
        '--work-dir', dest='out', default='work_dirs/worth', help='where the page and all else goes'
    )
    parser.add_argument(
        '--cfg-options', dest='options', nargs='+', action=ConfigOptions, help='of the pre-training'
    )
    return parser.parse_args()


def groups(text: str) -> Groups:
    table, mark, column = text.rpartition('.csv:')
    return dict(csv=f'{table}.csv', column=column) if mark else text


@one_sentence_errors
def main() -> None:
    try:
        found = worth(**vars(parse_args()))
    except Stopped as stopped:  # of a run, which has no --resume here
        raise Stopped(f'{str(stopped).partition(";")[0]}; the same command goes on') from stopped
    print(found)
    if isinstance(found, Worth):
        print(f'the page: {found.page.resolve()}')


if __name__ == '__main__':
    main()
