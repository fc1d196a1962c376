"""The command `mmairl pack`."""

import os
from pathlib import Path

from mmairl.cli.command import Count, Positive
from mmairl.errors import UserError


def pack(
    source: str,
    out: Path | None = None,
    *,
    statistics: bool = False,
    channels: Positive | None = None,
    unlabelled: bool = False,
    shards: Positive = 1,
    workers: Count | None = None,
) -> None:
    """Pack images into tar archives, or measure their channel statistics

    mmairl pack data/imagenet/train data/imagenet/train.tar

    To train from an archive, set train_dataloader.dataset.type=Shards and train_dataloader.dataset.root=OUT.tar, or with
    --shards root=OUT-*.tar. WebDataset can read the archives, too. Unreadable images are left out and listed.

    Args:
        source: read images in the folders SOURCE/CLASS, or in archives (SOURCE is then a file, folder or pattern)
        out: write this archive; required without --statistics
        statistics: print the mean and standard deviation of each channel for a config, and write nothing (default: off)
        channels: read images with N channels (default: RGB)
        unlabelled: read images at any depth, without classes (default: off)
        shards: write N archives OUT-000000.tar, OUT-000001.tar, ... of about equal size (default: 1)
        workers: read and decode in N processes (default: one per core)
    """
    if (out is None) != statistics:
        raise UserError(
            'pack: expected either an archive to write, or --statistics; give one of them',
            code='no-output',
        )
    # These imports come after the parsing of arguments, because importing torch takes seconds.
    from rich.progress import track

    from mmairl.data.datasets import ImageFolder, UnlabelledFolder
    from mmairl.data.preprocess import channel_statistics
    from mmairl.data.shards import SUFFIXES, Shards
    from mmairl.data.shards import pack as write
    from mmairl.hardware import cores

    workers = cores() if workers is None else workers
    kind = UnlabelledFolder if unlabelled or statistics else ImageFolder
    if not os.path.isdir(source) or any(name.endswith(SUFFIXES) for name in os.listdir(source)):
        kind = Shards
    dataset = kind(source, channels=channels)
    if statistics:
        measured = channel_statistics(dataset, workers)
        mean = [float(f'{value:.5g}') for value in measured.mean]
        std = [float(f'{value:.5g}') for value in measured.std]
        print(f'# {measured.images} images in {source}; {measured.unreadable} could not be read')
        print(f'model = dict(data_preprocessor=dict(mean={mean}, std={std}))')
        return
    images = write(dataset, out, workers, shards)
    left_out = 0
    for path, reason in track(images, 'packing', len(dataset)):
        if reason is not None:
            left_out += 1
            print(f'left out: {path} {reason}')
    print(f'{out}: {len(dataset) - left_out} images packed, {left_out} left out')
