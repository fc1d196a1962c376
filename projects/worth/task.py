"""Read custom images and their labels, check them, and split them into training and test images."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmairl.apis.suggest import FEWEST
from mmairl.data.datasets import UnlabelledFolder, ViewDataset, Views
from mmairl.data.splits import (
    Groups,
    groups_or_none,
    image_names,
    look_alikes,
    read_column,
    require_groups,
    split_by_class,
    split_conflicts,
    values_of,
)
from mmairl.errors import UserError, printable
from mmairl.evaluation.duplicates import pictures
from mmairl.evaluation.embed import dataset_of

TEST = 0.5  # fraction of the labeled images that are test images
SPLIT_FOLDERS = {'train', 'val', 'validation', 'test'}


@dataclass(frozen=True)
class Task:
    """The images, as names relative to the root, with their labels and the split."""

    root: Path
    names: list[str]
    labelled: list[str]
    y: np.ndarray
    classes: list[str]
    pool: np.ndarray  # training images, as indices of `labelled`
    test: np.ndarray
    unlabelled: list[str]  # images for pre-training: all except the test images and their groups
    channels: int | None
    groups: np.ndarray  # group of each labeled image; by default, each image is its own group
    ungrouped: int = 0  # number of images that are left out because their group is unknown

    def paths(self, names: Sequence[str]) -> list[Path]:
        return [self.root / name for name in names]

    def dataset(self, views: Views, places: Sequence[int] | None = None) -> ViewDataset:
        """Return the labeled images as a data set. If `places` is set, include only the images at these indices."""
        places = np.arange(len(self.labelled)) if places is None else places
        dataset = dataset_of(
            self.paths([self.labelled[place] for place in places]), views, self.channels
        )
        dataset.labels = torch.from_numpy(self.y[places])
        return dataset


def read_task(
    images: str | Path,
    labels: str | Path | None,
    channels: int | None,
    groups: Groups | None,
    seed: int,
    column: str | None = None,
) -> Task:
    """Return the images with their labels, split by class and by group."""
    if not Path(images).is_dir():
        raise UserError(
            f'images: no such folder ({Path(images).resolve()}); check the path',
            code='no-image-folder',
        )
    names = image_names(UnlabelledFolder(images, channels=channels))
    label_of = by_folder(names) if labels is None else by_table(names, labels, images, column)
    count = Counter(label_of.values())
    if labels is None and count.keys() <= SPLIT_FOLDERS:
        raise UserError(
            f'{images}: the folders are parts of a data set, not classes ({", ".join(count)}); give one of these '
            'folders, or set labels',
            code='split-folders',
        )
    if rare := [label for label, size in count.items() if size < 2]:
        raise UserError(
            f"class '{rare[0]}' has only one labeled image; label another image of this class, or leave the class out",
            code='class-of-one',
        )
    if len(count) < 2:
        source = 'in the folders below' if labels is None else f'in {labels} for'
        raise UserError(
            f'expected at least two classes {source} {images}, found {len(count)}; set labels of at least two classes',
            code='one-class',
        )
    labelled, classes = sorted(label_of), sorted(count)
    y = np.array([classes.index(label_of[name]) for name in labelled])
    group_of = dict(zip(names, groups_or_none(names, groups) if groups else names))
    labelled_groups = [group_of[name] for name in labelled]
    require_groups(labelled, labelled_groups, groups)
    for label in classes:
        if len({group_of[name] for name in labelled if label_of[name] == label}) < 2:
            raise UserError(
                f"all labeled images of class '{label}' belong to one group, which cannot be on both sides of the split; "
                'label images of another group, or leave the class out',
                code='one-group',
            )
    parts = split_by_class(torch.from_numpy(y), seed, TEST, labelled_groups if groups else None)
    pool, test = (part.sort().values.numpy() for part in parts)
    number = np.unique(labelled_groups, return_inverse=True)[1]
    require_several(y, pool, test, number)
    test_groups = {labelled_groups[place] for place in test}
    ungrouped = sum(group is None for group in group_of.values())
    # An image without a known group could belong to the group of a test image.
    pretraining = [
        name for name in names if group_of[name] is not None and group_of[name] not in test_groups
    ]
    if len(pretraining) < FEWEST:
        reason = 'are held out' + ' or have no group' * bool(ungrouped)
        raise UserError(
            f'{images}: {len(names) - len(pretraining)} of the {len(names)} images {reason}, and the '
            f'{len(pretraining)} others are too few for pre-training; add {FEWEST - len(pretraining)} more, with or '
            'without labels',
            code='few-images',
        )
    return Task(
        Path(images).resolve(),
        names,
        labelled,
        y,
        classes,
        pool,
        test,
        pretraining,
        channels,
        number,
        ungrouped,
    )


def require_several(y: np.ndarray, pool: np.ndarray, test: np.ndarray, groups: np.ndarray) -> None:
    """Raise unless the test set has at least two groups, and some class has at least two groups of training images.

    Otherwise, the variance cannot be estimated.
    """
    if len(set(groups[test])) < 2:
        raise UserError(
            'labels: the test set is a single image or group, so its variance is unknown; label more images',
            code='one-test-group',
        )
    if max(len(set(groups[pool[y[pool] == label]])) for label in set(y[pool])) < 2:
        raise UserError(
            'labels: each class has a single training image or group, so the variance is unknown; label more images',
            code='one-training-group',
        )


def by_folder(names: Sequence[str]) -> dict[str, str]:
    """Return for each image below a subfolder the name of its top folder."""
    return {name: name.partition('/')[0] for name in names if '/' in name}


def by_table(
    names: Sequence[str], labels: str | Path, images: str | Path, column: str | None = None
) -> dict[str, str]:
    """Return the label of each image that is named in the table."""
    table = {
        name: label.strip() for name, label in read_column(labels, column).items() if label.strip()
    }
    label_of, missing = values_of(names, table, labels, Path(images).resolve().name)
    if missing:
        raise UserError(
            f"{labels}: {len(missing)} names do not match exactly one image below {images}, first '{missing[0]}' (expected "
            f"names such as '{names[0]}'); correct the names",
            code='unmatched-names',
        )
    return label_of


def lay_out(task: Task, folder: Path) -> None:
    """Fill a folder with links to the images for pre-training."""
    for name in task.unlabelled:
        link = folder / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_symlink() and os.readlink(link) != str(task.root / name):
            link.unlink()  # the images have been moved, so the link is out of date
        if not link.is_symlink():
            link.symlink_to(task.root / name)


def testable(task: Task, x: np.ndarray, workers: int) -> tuple[Task, dict[str, Any]]:
    """Leave out unreadable images and test images that nearly equal a training image. Return the task and what was left out.

    A test image whose near-duplicate in the training set has another label is kept. It is reported as a label conflict.
    """
    fine = ~np.isnan(x[:, 0])
    if (x[fine] == x[fine][0]).all():
        raise UserError(
            f'{task.root}: all {fine.sum()} labeled images are equal; label other images',
            code='equal-images',
        )
    pool, test = task.pool[fine[task.pool]], task.test[fine[task.test]]
    for label, name in enumerate(task.classes):
        if not (label in task.y[pool] and label in task.y[test]):
            raise UserError(
                f"too few images of class '{name}' can be read; fix them, or leave the class out",
                code='unreadable-class',
            )
    sets = [task.dataset([[]], places) for places in (pool, test)]
    matches = look_alikes(*sets, workers)
    duplicates, conflicts = split_conflicts(matches, *(part.labels for part in sets))
    if len(duplicates) == len(test):
        raise UserError(
            f'{task.root}: each test image nearly equals a training image; remove copies',
            code='only-duplicates',
        )
    unlike = np.delete(test, [*duplicates])
    require_several(task.y, pool, unlike, task.groups)
    unreadable = [printable(task.labelled[place]) for place in np.flatnonzero(~fine)]
    left_out = dict(
        look_alikes=len(duplicates),
        pairs=pictures(*sets, duplicates.items()),
        conflicts=len(conflicts),
        conflict_pairs=pictures(*sets, conflicts.items()),
        unreadable=unreadable,
    )
    return replace(task, pool=pool, test=unlike), left_out
