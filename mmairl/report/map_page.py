"""The page with a map of images: by networks, pixels and random weights, with near-duplicates, outliers and groups."""

import base64
import io
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.analysis.feature_map import (
    PIXELS,
    SAME,
    Cells,
    Group,
    Outstanding,
    differ,
    extract_map_features,
    find_groups,
    find_nearest_cells,
    find_outstanding,
    nearest_cells,
    require_differences,
    tsne,
)
from mmairl.data.datasets import FileDataset
from mmairl.data.mixture import Mixture
from mmairl.data.splits import read_column, values_of
from mmairl.errors import UserError, cleared_frames
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.embed import Images, dataset_of, embedding_network
from mmairl.evaluation.features import Extraction
from mmairl.evaluation.protocol import default_device
from mmairl.report.compare_page import names_of
from mmairl.report.figures import feature_map, png
from mmairl.report.page import write_page
from mmairl.report.sections import REACH

NEAREST = 12  # neighbors of an image
SHEET = 16  # pictures along the side of a sheet
DUPLICATES = 60  # groups of near-duplicates that are shown
OUTLIERS = 24  # outliers that are shown
KINDS = 12  # a column with more different numbers is colored by its quintiles


@cleared_frames()
def map_images(
    checkpoint: str | Path | Sequence[str | Path],
    images: Images,
    out: str | Path,
    *,
    part: str = 'student',
    size: int | None = None,
    config: str | Path | None = None,
    colours: tuple[str | Path, str] | None = None,
    patches: int = 0,
    batch: int = 64,
    workers: int = 0,
    device: str | None = None,
    seed: int = 0,
) -> Path:
    """Write a page with a map of the images by the checkpoint's features, and return where it is.

    Args:
        checkpoint: of a ResNet, from a run of ours or of any project that `tools/evaluate.py` reads; of several, each has a
            map, and duplicates and groups are by the last.
        images: a folder with or without classes, an archive of tools/pack.py, several of these, which are coloured by where
            an image is from, or a list of files or of Pillow's images.
        out: the page, one HTML file.
        part: 'student' or 'teacher'.
        size: the side of the central crop; by default that of the training's crops, where the checkpoint says it, or 224.
        config: the config of a network that is no ResNet.
        colours: a CSV file whose first column names the images, and the column that colours them.
        patches: of so many images, evenly spaced by name, a click on a cell or a ViT's patch shows the nearest in other images;
            86 bytes of the page for each.
        batch: images at a time.
        workers: processes that load images.
        device: by default the GPU, where there is one.
        seed: of the random weights, the maps and the groups.

    >>> mmairl.map_images('runs/a/epoch_100.pth', 'images/', 'map.html')  # doctest: +SKIP
    """
    paths = [
        Path(path) for path in ([checkpoint] if isinstance(checkpoint, str | Path) else checkpoint)
    ]
    titles = names_of([path.absolute() for path in paths]) if len(paths) > 1 else ['after training']
    features: dict[str, Tensor] = {}
    for path, title in zip(paths, titles):
        cfg, weights, normal, views, channels = embedding_network(path, part, config, size=size)
        dataset = dataset_of(images, views, channels)
        how = Extraction(
            **normal, batch_size=batch, device=device or default_device(), workers=workers
        )
        networks = [load_backbone(cfg, weights)]
        if not features:
            networks.append(load_backbone(cfg, None, seed=seed))
            sheets = Sheets(len(dataset), how, dataset.as_stored)
        on_images = None if features else sheets.add
        (pixels, trained, *untrained), readable = extract_map_features(
            networks, dataset, how, on_images
        )
        require_differences(pixels, trained, len(dataset), str(path))
        for random in untrained:
            features |= {f'raw pixels, {PIXELS} x {PIXELS}': pixels, 'random weights': random}
        features[title] = trained
    kept = readable.nonzero().flatten().tolist()
    names = [name_of(dataset, i) for i in kept]
    classes, labels = by_column(names, *colours) if colours else by_class(dataset, kept, names)
    maps = [mapped(title, x, labels, classes, seed) for title, x in features.items() if differ(x)]
    data = dict(
        names=names,
        classes=classes,
        labels=labels.tolist(),
        side=sheets.side,
        sheet=SHEET,
        same=SAME,
        cells=None,
    )
    data |= dict(count=min(NEAREST, len(names) - 1), maps=[subject['data'] for subject in maps])
    if patches:
        data['cells'] = _cells_data(find_nearest_cells(patches, kept, cfg, weights, dataset, how))
    data['key'] = sha256(repr(data).encode()).hexdigest()[
        :8
    ]  # by which a link knows whether it was made here
    by = ', '.join(str(path) for path in paths)
    return write_page(
        out,
        'map.html',
        title=f'{len(names):,} images by {", ".join(path.name for path in paths)}',
        lead=f'What the {part} of {by} finds alike, beside what pixels say and what it said before it was trained.',
        data=data,
        maps=maps,
        names=names,
        unreadable=[name_of(dataset, i) for i in (~readable).nonzero().flatten().tolist()],
        groups=[_group_entry(group, labels, classes) for group in find_groups(trained, seed)],
        sheets=sheets.finished(),
        **_outstanding(find_outstanding(trained, maps[-1]['distance'])),
    )


class Sheets:
    """Pictures of all images, SHEET by SHEET in one JPEG, since a file for each would be half header."""

    def __init__(self, count: int, how: Extraction, as_stored: bool = False) -> None:
        self.as_stored = as_stored
        self.side = (
            96 if count <= 2000 else 64 if count <= 20_000 else 40
        )  # so that the page can be mailed
        self.mean, self.std = (
            torch.tensor(list(v), device=how.device).view(-1, 1, 1) for v in (how.mean, how.std)
        )
        self.waiting = torch.empty(
            0, 3, self.side, self.side, dtype=torch.uint8
        )  # never more than a sheet and a batch
        self.sheets: list[str] = []

    def add(self, images: Tensor) -> None:
        """The next images, normalised as a network is given them."""
        whole = images / (2 * REACH) + 0.5 if self.as_stored else images * self.std + self.mean
        whole = whole[:, :3] if whole.shape[1] >= 3 else whole[:, :1].expand(-1, 3, -1, -1)
        small = F.interpolate(whole, (self.side, self.side), mode='bilinear', antialias=True)
        self.waiting = torch.cat([self.waiting, (255 * small).round().clamp(0, 255).byte().cpu()])
        while len(self.waiting) >= SHEET**2:
            self._encode()

    def finished(self) -> list[str]:
        """The sheets for a page, the last one filled up with black."""
        if len(self.waiting):
            self._encode()
        return self.sheets

    def _encode(self) -> None:
        pictures, self.waiting = self.waiting[: SHEET**2], self.waiting[SHEET**2 :]
        pictures = F.pad(pictures, (0, 0, 0, 0, 0, 0, 0, SHEET**2 - len(pictures)))
        grid = pictures.view(SHEET, SHEET, 3, self.side, self.side).permute(0, 3, 1, 4, 2)
        buffer = io.BytesIO()
        image = Image.fromarray(grid.reshape(SHEET * self.side, -1, 3).numpy())
        image.save(buffer, 'JPEG', quality=80, optimize=True)
        self.sheets.append(base64.b64encode(buffer.getvalue()).decode())


def name_of(dataset: Dataset, index: int) -> str:
    """An image's path below its folder or in its archive, in characters that a page can have."""
    name = dataset.member(index) if hasattr(dataset, 'member') else dataset.name(index)
    return name.encode('utf-8', 'backslashreplace').decode()


def by_class(
    dataset: Dataset, kept: Sequence[int], names: Sequence[str]
) -> tuple[list[str], Tensor]:
    """Name the set of each image, where there are several, or its class: an archive's, or its uppermost folder."""
    if isinstance(dataset, Mixture):
        return list(dataset.sets), dataset.origins[kept]
    if dataset.classes:
        return list(dataset.classes), dataset.labels[kept]
    return _kinds(
        [
            name.split('/')[0] if '/' in name and isinstance(dataset, FileDataset) else ''
            for name in names
        ]
    )


def _kinds(values: Sequence[str]) -> tuple[list[str], Tensor]:
    kinds = sorted(set(values))
    if len(kinds) < 2:
        return [], torch.full((len(values),), -1)
    return [kind or '(none)' for kind in kinds], torch.tensor(
        [kinds.index(value) for value in values]
    )


def by_column(names: Sequence[str], path: str | Path, column: str) -> tuple[list[str], Tensor]:
    """The images' values in a column of a CSV, as kinds; many numbers become fifths of equal size."""
    given, _ = values_of(names, read_column(path, column), path)
    values = [given.get(name, '') for name in names]
    if not any(values):
        raise UserError(
            f'the first column of {path} names none of the images; it should say {names[0]}, for example'
        )
    try:
        numbers = np.array([float(value or 'nan') for value in values])
    except ValueError:
        return _kinds(values)
    if len(np.unique(numbers[np.isfinite(numbers)])) <= KINDS:
        return _kinds(values)
    edges = np.nanquantile(numbers, np.linspace(0, 1, 6))
    fifths = [f'{low:.4g} to {high:.4g}' for low, high in pairwise(edges)]
    labels = np.searchsorted(edges[1:-1], numbers, side='right')
    labels[np.isnan(numbers)] = len(fifths)
    return [*fifths, '(none)'], torch.from_numpy(labels)


def mapped(
    title: str, x: Tensor, labels: Tensor, classes: Sequence[str], seed: int
) -> dict[str, Any]:
    """Return a map with the neighbors of each image, as a picture and as the data of the canvas."""
    points = tsne(x, seed)
    low, high = points.min(axis=0), points.max(axis=0)
    centered = (points - (low + high) / 2) / (high - low).max()
    places = np.round((centered + 0.5) * 65535)
    distance, position = nearest_cells(x[:, None], min(NEAREST, len(x) - 1))
    kinds = (labels.clamp_min(0).numpy(), classes or ['image'])
    data = dict(title=title, places=_packed(places.astype('<u2')), **_neighbors(distance, position))
    return dict(
        title=title,
        data=data,
        still=png(feature_map(points, *kinds, title)),
        distance=distance[:, 0],
    )


def _neighbors(distance: Tensor, position: Tensor) -> dict[str, str]:
    return dict(
        near=_packed(position.numpy().astype('<u4')), far=_packed(distance.numpy().astype('<f4'))
    )


def _packed(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()


def _cells_data(cells: Cells) -> dict[str, Any]:
    data = dict(
        of=cells.images, rows=cells.rows, columns=cells.columns, count=cells.distance.shape[1]
    )
    return data | _neighbors(cells.distance, cells.position)


def _outstanding(found: Outstanding) -> dict[str, Any]:
    """Return the near-duplicates and outliers that the page shows, with their counts."""
    return dict(
        near=found.near,
        far=found.far,
        alike=found.duplicates[:DUPLICATES],
        alike_count=len(found.duplicates),
        alone=found.outliers[:OUTLIERS],
        alone_count=len(found.outliers),
    )


def _group_entry(group: Group, labels: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Return a group for the page, with the share of its most common class."""
    most = ''
    if classes:
        kind, count = Counter(labels[group.members].tolist()).most_common(1)[0]
        if kind >= 0:
            most = f'{100 * count / len(group.members):.0f} % {classes[kind]}'
    return dict(size=len(group.members), central=group.central, most=most)
