"""Honest splits: groups of images that stay on one side, such as a patient or a flight, and images that look alike on both."""

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

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mmairl.data.decode import UnreadableImage, to_unit
from mmairl.errors import UserError, closest, explained, printable
from mmairl.io import LARGEST_LIST, UnreadableFile, read_text

HELD_OUT = 0.2
HASH = 64  # bits of a hash
BITS, ALIKE = 4, 0.1  # of a hash, and of the deviation of all thumbnails: the most that two may differ by
# The same for colors. JPEG of quality 20 reaches 0.27 on images of 32 x 32; other colors of one drawing start at 0.71.
COLORS = 0.4
BLOCK = 128  # hashes that are compared with all others at once
INDEX = ('', 'Unnamed: 0')  # the heads of the numbers that pandas and R write before a table
Groups = str | Mapping[str, str] | Callable[[str], str]


def read_column(path: str | Path, column: str | None = None) -> dict[str, str]:
    """Return a column of a CSV, or the second, by what stands in the first, which names the images."""
    try:
        lines = StringIO(read_text(path, LARGEST_LIST, 'utf-8-sig')).readlines() or ['']
        marks = max(',;\t', key=lines[0].count)  # all that spreadsheets write
        head, *rows = csv.reader(lines, delimiter=marks, strict=True)
    except (UnreadableFile, csv.Error) as error:
        code = getattr(error, 'code', 'not-csv')
        raise UserError(f'the table {path} cannot be read ({error}); give a CSV in UTF-8', code=code) from error
    if len(head) > 2 and head[0] in INDEX:
        head, *rows = (row[1:] for row in (head, *rows) if row)
    if head and head[0].lower().endswith(('.png', '.jpg', '.jpeg', '.tif', '.tiff', '.dcm')):
        raise UserError(
            f"{path} begins with the image '{printable(head[0])}'; put a line of heads before it, as file,class"
        )
    if len(head) < 2:
        raise UserError(
            f'{path} has one column; give the names of images and a value of each, with a comma between them'
        )
    column = head[1] if column is None else column
    if column not in head[1:]:
        known = ', '.join(head[1:])
        raise UserError(f"{path} has no column '{column}' beside the first; it has {known}{closest(column, head[1:])}")
    values: dict[str, str] = {}
    for row in rows:
        if len(row) > (at := head.index(column)) and values.setdefault(row[0], row[at]) != row[at]:
            raise UserError(
                f"{path} says '{values[row[0]]}' and '{row[at]}' of {printable(row[0])}; keep one line of it"
            )
    return values


def values_of(
    names: Sequence[str], table: Mapping[str, str], path: str | Path, folder: str = ''
) -> tuple[dict[str, str], list[str]]:
    """Return the values of the images that a table names, and what of it names none, or one of several.

    It names an image by its path below the folder or by its file alone, with or without its ending: with the folder before
    it, by slashes of either kind, in any case, and with an umlaut in one sign or in two.
    """

    def plain(name: str) -> str:
        return unicodedata.normalize('NFC', name).casefold().replace('\\', '/').removeprefix('./')

    whole, by_name = set(names), defaultdict(set)
    for name in names:
        image = PurePosixPath(plain(name))
        for short in (image, image.with_suffix(''), image.name, image.stem):
            by_name[str(short)].add(name)
    values: dict[str, str] = {}
    missing = []
    for name, value in table.items():
        said = plain(name)
        below = f'/{said}'.partition(f'/{plain(folder)}/')[2]
        image, *more = {name} & whole or by_name.get(said) or by_name.get(below) or ['', '']
        if more:
            missing.append(name)
        elif values.setdefault(image, value) != value:
            raise UserError(f"{path} says '{values[image]}' and '{value}' of {printable(image)}; keep one line of it")
    return values, missing


def names_of(dataset: Dataset) -> list[str]:
    """Return the images' names: below the root of a folder, or as messages name them."""
    if hasattr(dataset, 'indices'):
        inner = names_of(dataset.dataset)
        return [inner[index] for index in dataset.indices.tolist()]
    return list(map(getattr(dataset, 'member', dataset.name), range(len(dataset))))


def groups_of(names: Sequence[str], groups: Groups) -> list[str]:
    """Return each image's group by its name. Raise a UserError if an image has none.

    `groups` is a regular expression, whose first bracket, or else whole match, is the group; a CSV whose first column names
    the images, as dict(csv=FILE, column=NAME); or a function, in a config as dict(function='module.function').

    >>> groups_of(['p07/a.png', 'p07/b.png', 'p08/a.png'], r'(p\\d+)/')
    ['p07', 'p07', 'p08']
    """
    found = find_groups(names, groups)
    require_groups(names, found, groups)
    return found


def find_groups(names: Sequence[str], groups: Groups) -> list[str | None]:
    """Return each image's group, as `groups_of`, or None."""
    if isinstance(groups, str):
        with explained(f'groups={groups} is no regular expression', 'mend it, as (p\\d+)/', re.error):
            matches = [re.search(groups, name) for name in names]
        found = [match and (match[1] if match.re.groups else match[0]) for match in matches]
    elif callable(groups):
        found = list(map(groups, names))
    elif 'function' in groups:
        with explained(f'groups={groups} names no function', "say 'module.function'", (ImportError, AttributeError)):
            function = resolve_name(groups['function'])
        return find_groups(names, function)
    elif 'csv' not in groups:
        raise UserError(f'groups={groups} names no table; say dict(csv=FILE, column=NAME)')
    else:
        table, _ = values_of(names, read_column(groups['csv'], groups.get('column')), groups['csv'])
        found = list(map(table.get, names))
    return [None if group in (None, '') else str(group) for group in found]


def require_groups(names: Sequence[str], found: Sequence[str | None], groups: Groups) -> None:
    if without := [name for name, group in zip(names, found) if group is None]:
        raise UserError(
            f'{len(without)} of the {len(names)} images have no group by groups={groups}, first {printable(without[0])}; '
            'name the group of every image',
            code='no-group',
        )


def refuse_shared(groups: Mapping[str, Sequence[str]]) -> None:
    """Refuse parts, each with the groups of its images, of which two have images of one group."""
    for (one, first), (other, second) in combinations(groups.items(), 2):
        if shared := sorted(set(first) & set(second)):
            few, many = Counter(second)[shared[0]], Counter(first)[shared[0]]
            raise UserError(
                f'{len(shared)} groups have images among both the {one} and the {other} images, first '
                f"'{printable(shared[0])}' with {many} and {few}; move each group to one side"
            )


def split_by_class(
    y: Tensor, seed: int = 0, fraction: float = HELD_OUT, groups: Sequence[str] | None = None
) -> tuple[Tensor, Tensor]:
    """Return positions to fit on and positions held out: a fraction of every class, and at least one image of each.

    Where an image has several labels the fraction is of all images. With `groups`, a group is held out whole or not at all.
    """
    generator = torch.Generator().manual_seed(seed)
    if groups is not None:
        return _split_by_group(y, fraction, groups, generator)
    if y.ndim == 2:
        order = torch.randperm(len(y), generator=generator)
        return order[int(fraction * len(y)) :], order[: int(fraction * len(y))]
    fit_part, held_part = [], []
    for label in y.unique():
        members = (y == label).nonzero().flatten()
        if len(members) < 2:
            raise UserError(
                f'class {int(label)} has one training image and some must be held out for validation; add images of it, '
                'leave the class out, or name validation data as evaluation.val'
            )
        members = members[torch.randperm(len(members), generator=generator)]
        held = max(1, int(fraction * len(members)))
        held_part.append(members[:held])
        fit_part.append(members[held:])
    return torch.cat(fit_part), torch.cat(held_part)


def _split_by_group(
    y: Tensor, fraction: float, groups: Sequence[str], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Hold out groups in a random order, each if the classes come closer to the fraction by it."""
    place = {name: number for number, name in enumerate(sorted(set(groups)))}
    number = torch.tensor([place[name] for name in groups])
    of_class = (y == 1).double() if y.ndim == 2 else (y[:, None] == y.unique()).double()
    counts = torch.zeros(len(place), of_class.shape[1], dtype=torch.float64).index_add_(0, number, of_class)
    missing, held = fraction * counts.sum(0), torch.zeros(len(place), dtype=torch.bool)
    weight, there = 1 / missing.clamp_min(1), counts > 0
    left = there.sum(0)  # groups of each class to fit on

    def spare(group: int) -> bool:
        """Whether each class of the group has another one to fit on."""
        return y.ndim == 2 or bool(left[there[group]].gt(1).all())

    for group in torch.randperm(len(place), generator=generator).tolist():
        if (weight * (missing.square() - (missing - counts[group]).square())).sum() > 0 and spare(group):
            held[group], missing, left = True, missing - counts[group], left - there[group].long()
    for label in range(counts.shape[1] if y.ndim == 1 else 0):
        if (there[:, label] & held).any():
            continue
        free = [group for group in there[:, label].nonzero().flatten().tolist() if spare(group)]
        if not free:
            raise UserError(
                f'class {y.unique()[label].item()} has training images of {int(there[:, label].sum())} groups, of which none '
                'can be held out so that every class keeps another to fit on; add groups of it, leave the class out, or name '
                'validation data as evaluation.val'
            )
        smallest = min(free, key=lambda group: counts[group].sum())  # it will do
        held[smallest], left = True, left - there[smallest].long()
    return (~held[number]).nonzero().flatten(), held[number].nonzero().flatten()


def look_alikes(train: Dataset, test: Dataset, workers: int = 0) -> dict[int, int]:
    """Return the indices of test images that look like a training image, each with that image's index.

    No network is used. Two images look alike if their gray difference hashes differ in at most BITS of 64, their gray
    thumbnails by less than ALIKE on average, and their colors, without the gray, by less than COLORS (root mean square).
    """
    bank, query = (_looks(dataset, workers) for dataset in (train, test))
    known = bank[bank[:, 0, 0, 0].isfinite()]
    gray_limit, color_limit = ALIKE * known.mean(1).std(), COLORS * known.std()
    bank_hashes, found = _hashes(bank), {}
    for first, block in zip(range(0, len(query), BLOCK), query.split(BLOCK)):
        equal_bits = (_hashes(block) @ bank_hashes.T + HASH) / 2
        for index, candidates in enumerate(equal_bits >= HASH - BITS):
            places = candidates.nonzero().flatten()
            difference = bank[places] - block[index]
            gray = difference.mean(1, keepdim=True)
            close = gray.abs().mean((1, 2, 3)) < gray_limit
            close &= (difference - gray).square().mean((1, 2, 3)).sqrt() < color_limit
            if close.any():
                distance = difference.square().mean((1, 2, 3)).where(close, torch.inf)
                found[first + index] = int(places[distance.argmin()])
    return found


def split_conflicts(
    alike: Mapping[int, int], train_labels: Tensor, test_labels: Tensor
) -> tuple[dict[int, int], dict[int, int]]:
    """Split pairs of look-alikes into near duplicates, whose labels are equal, and label conflicts.

    A conflict may be two images that differ in what the class depends on, so it is no reason to leave out a test image.
    """
    duplicates, conflicts = {}, {}
    for test, train in alike.items():
        same = torch.equal(test_labels[test], train_labels[train])
        (duplicates if same else conflicts)[test] = train
    return duplicates, conflicts


def _looks(dataset: Dataset, workers: int) -> Tensor:
    loader = DataLoader(range(len(dataset)), batch_size=None, num_workers=workers, collate_fn=partial(_look, dataset))
    # A tensor that comes from a worker keeps a file open, and its copy does not.
    looks = [look.clone() for look in track(loader, 'looking for duplicates', len(dataset))]
    shape = next((look.shape for look in looks if look.ndim), (3, 16, 16))
    return torch.stack([look.expand(shape) for look in looks])


def _look(dataset: Dataset, index: int) -> Tensor:
    """Return a thumbnail of an image, gray images as RGB; NaN if it cannot be read."""
    try:
        image = to_unit(dataset.raw(index))
    except UnreadableImage:
        return torch.tensor(torch.nan)
    small = F.interpolate(image[None].float(), (16, 16), mode='bilinear', antialias=True)[0]
    return small.expand(3, -1, -1) if len(small) == 1 else small


def _hashes(looks: Tensor) -> Tensor:
    """Return for each of 8 x 9 grays whether it is darker than the next, as 1 or -1."""
    small = F.interpolate(looks.mean(1, keepdim=True), (8, 9), mode='bilinear', antialias=True)[:, 0]
    return (small[:, :, 1:] > small[:, :, :-1]).flatten(1).float() * 2 - 1
