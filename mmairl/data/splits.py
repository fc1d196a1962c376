"""Data splits, and checks that the two sides of a split do not share images.

A split can keep groups together, such as all images of a patient. The checks find test images that look like training images.
"""

import csv
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import StringIO
from itertools import combinations
from pathlib import Path, PurePosixPath
from pkgutil import resolve_name

import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mmairl.data.decode import UnreadableImage, to_unit
from mmairl.errors import UserError, closest, explained
from mmairl.io import LARGEST_LIST, UnreadableFile, read_text

HELD_OUT = 0.2  # default fraction of the images to hold out
HASH = 64  # number of bits of a hash
BITS = 4  # the hashes of two images that look alike differ in at most this many bits
# If two images look alike, their thumbnails differ by less than ALIKE in gray and by less than COLORS in color, in units of the
# standard deviation of the training set's gray or color thumbnails. COLORS lies between two measured differences in color: JPEG
# compression with quality 20 changes images with 32 x 32 pixels by up to 0.27, and drawings that differ only in color differ by
# at least 0.71.
ALIKE = 0.1
COLORS = 0.4
BLOCK = 128  # this many test images are compared with all training images at once
INDEX_HEADERS = ('', 'Unnamed: 0')  # R and pandas write a column of row numbers with these headers
Groups = str | Mapping[str, str] | Callable[[str], str]


def read_column(path: str | Path, column: str | None = None) -> dict[str, str]:
    """Read a CSV table whose first column contains image names. Return the entry of `column` for each image.

    The default of `column` is the second column.
    """
    try:
        lines = StringIO(read_text(path, LARGEST_LIST, 'utf-8-sig')).readlines() or ['']
        separator = max(',;\t', key=lines[0].count)  # spreadsheets write one of these separators
        header, *rows = csv.reader(lines, delimiter=separator, strict=True)
    except (UnreadableFile, csv.Error) as error:
        code = getattr(error, 'code', 'not-csv')
        raise UserError(
            f'{path}: the table cannot be read ({error}); save it as CSV in UTF-8', code=code
        ) from error
    if len(header) > 2 and header[0] in INDEX_HEADERS:
        header = header[1:]
        rows = [row[1:] for row in rows if row]
    if header and header[0].lower().endswith(('.png', '.jpg', '.jpeg', '.tif', '.tiff', '.dcm')):
        raise UserError(
            f"{path}: the first line contains the name of an image ('{header[0]}'); add a header line before it, such as "
            'file,class',
            code='no-header',
        )
    if len(header) < 2:
        raise UserError(
            f'{path}: the table has only one column; write image names to the first column and their values to the second',
            code='one-column',
        )
    column = header[1] if column is None else column
    if column not in header[1:]:
        known = ', '.join(header[1:])
        raise UserError(
            f"{path}: no column has this name ('{column}'); use one of {known}{closest(column, header[1:])}",
            code='no-column',
        )
    position = header.index(column, 1)
    values: dict[str, str] = {}
    for row in rows:
        if len(row) > position:
            _set_once(values, row[0], row[position], path)
    return values


def _set_once(values: dict[str, str], image: str, value: str, path: str | Path) -> None:
    """Set the value of an image. Raise if the image already has a different value."""
    if values.setdefault(image, value) != value:
        raise UserError(
            f"{path}: the image {image} has two values ('{values[image]}' and '{value}'); remove one of its lines",
            code='two-values',
        )


def values_of(
    names: Sequence[str], table: Mapping[str, str], path: str | Path, folder: str = ''
) -> tuple[dict[str, str], list[str]]:
    """Look up the images that a table lists. Return their values, and the names that do not match exactly one image.

    A name in a table may be the path of an image relative to the folder, with or without the folder in front, or only the
    file name. The extension is optional. Slashes and backslashes, upper and lower case, and the two Unicode forms of accents
    are equivalent.
    """
    exact = set(names)
    by_short_name = defaultdict(set)
    for name in names:
        image = PurePosixPath(_plain(name))
        for short in (image, image.with_suffix(''), image.name, image.stem):
            by_short_name[str(short)].add(name)
    values: dict[str, str] = {}
    missing = []
    for name, value in table.items():
        plain = _plain(name)
        below = f'/{plain}'.partition(f'/{_plain(folder)}/')[2]
        matches = {name} & exact or by_short_name.get(plain) or by_short_name.get(below, set())
        if len(matches) != 1:
            missing.append(name)
            continue
        (image,) = matches
        _set_once(values, image, value, path)
    return values, missing


def _plain(name: str) -> str:
    return unicodedata.normalize('NFC', name).casefold().replace('\\', '/').removeprefix('./')


def image_names(dataset: Dataset) -> list[str]:
    """Return the name of each image: the path relative to the root or, if the image has no path, its name in messages."""
    return list(map(dataset.member, range(len(dataset))))


def groups_of(names: Sequence[str], groups: Groups) -> list[str]:
    r"""Return the group of each image, such as the patient that it shows. The group is determined from the image's name.

    Args:
        names: Names of the images.
        groups: One of:

            - A regular expression. The group of an image is the first capturing group, or the whole match if the
              expression has no capturing group.
            - dict(csv=FILE, column=NAME). The first column of the file contains image names, and the column NAME contains
              their groups.
            - A function, or dict(function='module.function'). The function takes a name and returns its group.

    Raises:
        UserError: If `groups` is invalid, or if an image has no group.

    Example:
        >>> groups_of(['p07/a.png', 'p07/b.png', 'p08/a.png'], r'(p\d+)/')
        ['p07', 'p07', 'p08']
    """
    result = groups_or_none(names, groups)
    require_groups(names, result, groups)
    return result


def groups_or_none(names: Sequence[str], groups: Groups) -> list[str | None]:
    """Return the group of each image as in `groups_of`, or None for an image without a group."""
    if isinstance(groups, str):
        fault = f'groups={groups}: not a regular expression'
        with explained(fault, r'set one such as (p\d+)/', (re.error,), code='bad-pattern'):
            matches = [re.search(groups, name) for name in names]
        result = [match and (match[1] if match.re.groups else match[0]) for match in matches]
    elif callable(groups):
        result = list(map(groups, names))
    elif 'function' in groups:
        fault = f'groups={groups}: the function cannot be imported'
        kinds = (ImportError, AttributeError, ValueError)
        with explained(fault, "set 'module.function'", kinds, code='no-function'):
            function = resolve_name(groups['function'])
        return groups_or_none(names, function)
    elif 'csv' in groups:
        column = read_column(groups['csv'], groups.get('column'))
        table, _ = values_of(names, column, groups['csv'])
        result = list(map(table.get, names))
    else:
        raise UserError(
            f"groups={groups}: requires csv or function; set dict(csv=FILE, column=NAME) or dict(function='module.function')",
            code='no-table',
        )
    return [None if group in (None, '') else str(group) for group in result]


def require_groups(
    names: Sequence[str], groups_found: Sequence[str | None], groups: Groups
) -> None:
    """Raise if an image has no group, that is, if its entry in `groups_found` is None."""
    without = [name for name, group in zip(names, groups_found) if group is None]
    if without:
        raise UserError(
            f'groups={groups}: {len(without)} of {len(names)} images have no group (the first: {without[0]}); set groups '
            'that include every image',
            code='no-group',
        )


def refuse_shared(groups: Mapping[str, Sequence[str]]) -> None:
    """Raise if two parts of a split share a group. `groups` maps the name of each part to the groups of its images."""
    for (one, first), (other, second) in combinations(groups.items(), 2):
        shared = sorted(set(first) & set(second))
        if shared:
            name = shared[0]
            raise UserError(
                f"groups: {len(shared)} groups have both {one} and {other} images (the first: '{name}' with "
                f'{Counter(first)[name]} {one} and {Counter(second)[name]} {other} images); move all images of a group to '
                'one of the two sets',
                code='shared-groups',
            )


def split_by_class(
    y: Tensor, seed: int = 0, fraction: float = HELD_OUT, groups: Sequence[str] | None = None
) -> tuple[Tensor, Tensor]:
    """Split images into two sides. Return the indices of the images to fit on, and the indices of the held-out images.

    A fraction of every class is held out, but at least one image per class. If an image can have several labels, a fraction of
    all images is held out instead. If `groups` is set, all images of a group are on the same side, and the fractions are
    approximate.
    """
    generator = torch.Generator().manual_seed(seed)
    if groups is not None:
        return _split_by_group(y, fraction, groups, generator)
    if y.ndim == 2:
        order = torch.randperm(len(y), generator=generator)
        count = int(fraction * len(y))
        return order[count:], order[:count]
    fit, held = [], []
    for label in y.unique():
        members = (y == label).nonzero().flatten()
        if len(members) < 2:
            raise UserError(
                f'class {int(label)} has only one training image, but a validation split requires two; add images, remove '
                'the class, or set separate validation data as evaluation.val',
                code='class-of-one',
            )
        members = members[torch.randperm(len(members), generator=generator)]
        count = max(1, int(fraction * len(members)))
        held.append(members[:count])
        fit.append(members[count:])
    return torch.cat(fit), torch.cat(held)


def _split_by_group(
    y: Tensor, fraction: float, groups: Sequence[str], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Split images so that all images of a group are on the same side. Return the indices as `split_by_class` does.

    The groups are visited in random order. A group is held out if this brings the held-out fractions of its classes
    closer to `fraction`. Then, unless an image can have several labels, one group is held out for each class without held-out
    images. scikit-learn's StratifiedGroupKFold is not used, because it can leave a class with few groups on only one side.
    """
    names, inverse = np.unique(groups, return_inverse=True)
    numbers = torch.from_numpy(inverse)
    one_label = y.ndim == 1
    classes = y.unique() if one_label else []
    members = (y[:, None] == classes if one_label else y == 1).double()
    counts = torch.zeros(len(names), members.shape[1]).double().index_add_(0, numbers, members)
    has_class = counts > 0
    # For each class, this is the number of images that remain to be held out.
    missing = fraction * counts.sum(0)
    weight = 1 / missing.clamp_min(1)
    fit_groups = has_class.sum(0)  # for each class, the number of groups to fit on
    held = torch.zeros(len(names), dtype=torch.bool)

    def hold(group: int) -> bool:
        """Hold out a group, unless this would leave a class without a group to fit on. Return whether the group is held out.

        If an image can have several labels, the group is always held out.
        """
        if one_label and (fit_groups[has_class[group]] <= 1).any():
            return False
        held[group] = True
        missing.sub_(counts[group])
        fit_groups.sub_(has_class[group].long())
        return True

    for group in torch.randperm(len(names), generator=generator).tolist():
        gain = missing.square() - (missing - counts[group]).square()
        if (weight * gain).sum() > 0:
            hold(group)
    for label, name in enumerate(classes):
        with_class = has_class[:, label].nonzero().flatten().tolist()
        by_size = sorted(with_class, key=lambda group: counts[group].sum())
        if not held[with_class].any() and not any(map(hold, by_size)):
            raise UserError(
                f'class {name.item()}: its training images are in {len(with_class)} groups, and holding out any of these '
                'groups would leave a class without training images; add groups, remove the class, or set separate validation '
                'data as evaluation.val',
                code='few-groups',
            )
    is_held = held[numbers]
    return (~is_held).nonzero().flatten(), is_held.nonzero().flatten()


def look_alikes(train: Dataset, test: Dataset, workers: int = 0) -> dict[int, int]:
    """Find the test images that look like a training image.

    Return a dictionary from the index of each of these test images to the index of the most similar training image.

    No neural network is used. Two images look alike if three conditions hold: their gray difference hashes differ in at
    most BITS of 64 bits, the mean absolute difference of their gray thumbnails is below ALIKE, and the root-mean-square
    difference of their color thumbnails, after subtracting gray, is below COLORS. The units of the last two limits are the
    standard deviations of the training set's gray and color thumbnails.
    """
    bank = _thumbnails(train, workers)
    queries = _thumbnails(test, workers)
    readable = bank[bank[:, 0, 0, 0].isfinite()]
    gray_limit = ALIKE * readable.mean(1).std()
    color_limit = COLORS * readable.std()
    bank_hashes = _hashes(bank)
    matches = {}
    for first, block in zip(range(0, len(queries), BLOCK), queries.split(BLOCK)):
        equal_bits = (_hashes(block) @ bank_hashes.T + HASH) / 2
        for row, candidates in enumerate(equal_bits >= HASH - BITS):
            indices = candidates.nonzero().flatten()
            difference = bank[indices] - block[row]
            gray = difference.mean(1, keepdim=True)
            close = gray.abs().mean((1, 2, 3)) < gray_limit
            close &= (difference - gray).square().mean((1, 2, 3)).sqrt() < color_limit
            if close.any():
                distance = difference.square().mean((1, 2, 3)).where(close, torch.inf)
                matches[first + row] = int(indices[distance.argmin()])
    return matches


def split_conflicts(
    alike: Mapping[int, int], train_labels: Tensor, test_labels: Tensor
) -> tuple[dict[int, int], dict[int, int]]:
    """Divide the result of `look_alikes` into near duplicates (with equal labels) and conflicts (with different labels).

    Two images in conflict may differ in exactly the detail that determines the class. A conflict alone is therefore no reason
    to leave out the test image.
    """
    duplicates, conflicts = {}, {}
    for test, train in alike.items():
        same = torch.equal(test_labels[test], train_labels[train])
        (duplicates if same else conflicts)[test] = train
    return duplicates, conflicts


def _thumbnails(dataset: Dataset, workers: int) -> Tensor:
    loader = DataLoader(
        range(len(dataset)),
        batch_size=None,
        num_workers=workers,
        collate_fn=partial(_thumbnail, dataset),
    )
    # The tensors are copied, because a tensor that comes from a data worker keeps a file open.
    images = [image.clone() for image in track(loader, 'looking for duplicates', len(dataset))]
    shape = next((image.shape for image in images if image.ndim), (3, 16, 16))
    return torch.stack([image.expand(shape) for image in images])


def _thumbnail(dataset: Dataset, index: int) -> Tensor:
    """Return a thumbnail of 16 x 16 pixels, or NaN if the image is unreadable. A gray image becomes RGB."""
    try:
        image = to_unit(dataset.raw(index))
    except UnreadableImage:
        return torch.tensor(torch.nan)
    small = F.interpolate(image[None].float(), (16, 16), mode='bilinear', antialias=True)[0]
    return small.expand(3, -1, -1) if len(small) == 1 else small


def _hashes(thumbnails: Tensor) -> Tensor:
    """Return the difference hash of each thumbnail: for each of 8 x 8 pixels, 1 if its right neighbor is brighter, else -1."""
    small = F.interpolate(
        thumbnails.mean(1, keepdim=True), (8, 9), mode='bilinear', antialias=True
    )[:, 0]
    return (small[:, :, 1:] > small[:, :, :-1]).flatten(1).float() * 2 - 1
