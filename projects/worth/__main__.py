"""Measure whether pre-training improves accuracy on your images, given labels of a few, and write a page with the result.

python -m projects.worth IMAGES --labels labels.csv --weights torchvision:resnet50 --minutes 60 [--plan]
"""

if __name__ == '__main__':
    from mmairl.cli import prepare

    prepare()  # prepares the process before the imports below, which take seconds

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
    parser.add_argument('images', help='read images at any depth of this folder')
    parser.add_argument(
        '--labels',
        help='read names of images and their classes from this CSV (default: the folders are classes)',
    )
    parser.add_argument(
        '--column', help='read classes from the column with this header (default: the second)'
    )
    parser.add_argument(
        '--weights',
        nargs='+',
        default=[],
        help='compare these released networks: torchvision:NAME, or files (default: none)',
    )
    parser.add_argument(
        '--method',
        default='mocov2plus',
        help='pre-train by this method, such as byol or simclr (default: mocov2plus)',
    )
    parser.add_argument(
        '--minutes',
        type=above_zero,
        help='choose the size of crops, the number of epochs and the number of random subsets of the labels, so that the total '
        'time is about this many minutes (default: no budget)',
    )
    parser.add_argument(
        '--size',
        type=positive,
        help='set the side of the crops in pixels (default: the side of the images, at most 224)',
    )
    parser.add_argument(
        '--epochs', type=positive, help='pre-train for this many epochs (default: 100)'
    )
    parser.add_argument(
        '--groups',
        type=groups,
        help='use all images of a group, such as a patient, either for training or for testing. The group of an image is '
        'the part of its name that a regular expression matches, or its value in a column of a CSV file, CSV:COLUMN '
        '(default: no groups)',
    )
    parser.add_argument(
        '--batch',
        type=positive,
        help='pre-train with this many images per step (default: depends on the number of images)',
    )
    parser.add_argument(
        '--workers', type=count, help='load images in this many processes (default: one per core)'
    )
    parser.add_argument(
        '--channels',
        type=positive,
        help='read images as stored, with this many channels (default: 8-bit RGB)',
    )
    parser.add_argument(
        '--seed',
        type=seed,
        default=0,
        help='set the seed of the split, of the random subsets of the labels and of pre-training (default: 0)',
    )
    parser.add_argument(
        '--plan', action='store_true', help='measure the speed, print the plan and exit'
    )
    parser.add_argument(
        '--work-dir',
        dest='out',
        default='work_dirs/worth',
        help='write all results to this folder (default: work_dirs/worth)',
    )
    parser.add_argument(
        '--cfg-options',
        dest='options',
        nargs='+',
        action=ConfigOptions,
        help='set config keys of pre-training',
    )
    return parser.parse_args()


def groups(text: str) -> Groups:
    table, mark, column = text.rpartition('.csv:')
    return dict(csv=f'{table}.csv', column=column) if mark else text


@one_sentence_errors
def main() -> None:
    try:
        outcome = worth(**vars(parse_args()))
    except Stopped as stopped:
        # The message's part after the semicolon advises to set --resume, which this command does not have.
        raise Stopped(
            f'{str(stopped).partition(";")[0]}; run the same command to continue'
        ) from stopped
    print(outcome)
    if isinstance(outcome, Worth):
        print(f'the page: {outcome.page.resolve()}')


if __name__ == '__main__':
    main()
