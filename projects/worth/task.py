"""The images of a comparison with few labels: read, checked, and split so that what is tested was not learned from."""

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

TEST = 0.5  # of the labels


@dataclass(frozen=True)
class Task:
    """The images by their names below the root, which of them have labels, and what is learned from and tested on."""

    root: Path
    names: list[str]
    labelled: list[str]
    y: np.ndarray
    classes: list[str]
    pool: np.ndarray  # positions in `labelled`
    test: np.ndarray
    unlabelled: list[str]  # for pre-training: all but the test images and those of their groups
    channels: int | None
    groups: np.ndarray  # a number for each labelled image, of its own where there are none
    ungrouped: int = 0  # images without labels that are left out for want of a group

    def paths(self, names: Sequence[str]) -> list[Path]:
        return [self.root / name for name in names]

    def dataset(self, views: Views, places: Sequence[int] | None = None) -> ViewDataset:
        """Return the labelled images, or those at some places."""
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
    """Return the images with their labels, split by class and where there are groups by these."""
    if not Path(images).is_dir():
        raise UserError(f'there is no folder of images at {Path(images).resolve()}; check the path')
    names = image_names(UnlabelledFolder(images, channels=channels))
    given = by_folder(names) if labels is None else by_table(names, labels, images, column)
    count = Counter(given.values())
    if few := [label for label, many in count.items() if many < 2]:
        raise UserError(
            f"class '{printable(few[0])}' has one labelled image, and one is needed to learn from and one to test on; "
            'label another, or leave the class out'
        )
    if len(count) < 2:
        where = 'in the folders below' if labels is None else f'in {labels} for'
        raise UserError(
            f'there are {len(count)} classes {where} {images}; give labels of two classes or more'
        )
    labelled, classes = sorted(given), sorted(count)
    y = np.array([classes.index(given[name]) for name in labelled])
    own = dict(zip(names, groups_or_none(names, groups) if groups else names))
    told = [own[name] for name in labelled]
    require_groups(labelled, told, groups)
    for label in classes:
        if len({own[name] for name in labelled if given[name] == label}) < 2:
            raise UserError(
                f"the labelled images of class '{printable(label)}' are all of one group, which cannot be to learn from and "
                'to test on at once; label images of another group, or leave the class out'
            )
    parts = split_by_class(torch.from_numpy(y), seed, TEST, told if groups else None)
    pool, test = (part.sort().values.numpy() for part in parts)
    number = np.unique(told, return_inverse=True)[1]
    require_several(y, pool, test, number)
    tested = {told[place] for place in test}
    ungrouped = sum(group is None for group in own.values())
    # An image without a group may be of a test image's group.
    kept = [name for name in names if own[name] is not None and own[name] not in tested]
    if len(kept) < FEWEST:
        aside = 'are put aside to test on' + ' or have no group' * bool(ungrouped)
        raise UserError(
            f'of the {len(names)} images below {images} {len(names) - len(kept)} {aside}, and the {len(kept)} '
            f'others are too few for a pre-training; give {FEWEST - len(kept)} more, with or without labels'
        )
    return Task(
        Path(images).resolve(),
        names,
        labelled,
        y,
        classes,
        pool,
        test,
        kept,
        channels,
        number,
        ungrouped,
    )


def require_several(y: np.ndarray, pool: np.ndarray, test: np.ndarray, groups: np.ndarray) -> None:
    """Refuse a pool of which no class has two groups, and a test of one: how much it matters which they are is not told."""
    if len(set(groups[test])) < 2:
        raise UserError(
            'a single image, or group, is to test on, and nothing tells how others would do; label more'
        )
    if max(len(set(groups[pool[y[pool] == label]])) for label in set(y[pool])) < 2:
        raise UserError(
            'of each class a single image, or group, is to learn from, and nothing tells how others would do; label more'
        )


def by_folder(names: Sequence[str]) -> dict[str, str]:
    """Return the uppermost folder of each image that lies in one."""
    return {name: name.partition('/')[0] for name in names if '/' in name}


def by_table(
    names: Sequence[str], labels: str | Path, images: str | Path, column: str | None = None
) -> dict[str, str]:
    """Return the label of each image that the table names."""
    table = {
        name: label.strip() for name, label in read_column(labels, column).items() if label.strip()
    }
    given, missing = values_of(names, table, labels, Path(images).resolve().name)
    if missing:
        raise UserError(
            f'{labels} has labels for {len(missing)} files that are not below {images}, first '
            f"'{printable(missing[0])}', where images are named like '{printable(names[0])}'; correct the names"
        )
    return given


def lay_out(task: Task, folder: Path) -> None:
    """Fill a folder with links to the images of the own pre-training."""
    for name in task.unlabelled:
        link = folder / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_symlink() and os.readlink(link) != str(
            task.root / name
        ):  # the images have been moved
            link.unlink()
        if not link.is_symlink():
            link.symlink_to(task.root / name)


def testable(task: Task, x: np.ndarray, workers: int) -> tuple[Task, dict[str, Any]]:
    """Leave out unreadable images, and test images that duplicate an image to learn from; return what was left out.

    A test image whose look-alike has another label stays: it is counted and shown as a label conflict.
    """
    fine = ~np.isnan(x[:, 0])
    if (x[fine] == x[fine][0]).all():
        raise UserError(
            f'the {fine.sum()} labelled images below {task.root} are all alike; give others'
        )
    pool, test = task.pool[fine[task.pool]], task.test[fine[task.test]]
    for label, name in enumerate(task.classes):
        if not (label in task.y[pool] and label in task.y[test]):
            raise UserError(
                f"too few images of class '{printable(name)}' can be read; mend them, or leave the class out"
            )
    sets = [task.dataset([[]], places) for places in (pool, test)]
    alike = look_alikes(*sets, workers)
    duplicates, conflicts = split_conflicts(alike, *(part.labels for part in sets))
    if len(duplicates) == len(test):
        raise UserError(
            f'each test image below {task.root} looks like one to learn from; take copies out'
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
