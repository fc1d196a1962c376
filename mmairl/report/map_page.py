"""Write the page with maps of images, which also lists near-duplicates, outliers and groups of images.

There is a map for the features of each network, and two maps for comparison: by raw pixels and by random weights.
"""

import io
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms.v2.functional import to_pil_image
from torchvision.utils import make_grid

from mmairl.analysis.feature_map import (
    PIXELS,
    SAME,
    Group,
    ImageCells,
    differ,
    extract_map_features,
    find_clusters,
    find_nearest_cells,
    find_outstanding,
    nearest_cells,
    require_differences,
    tsne,
)
from mmairl.data.datasets import FileDataset
from mmairl.data.splits import read_column, values_of
from mmairl.errors import UserError, cleared_frames
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.embed import Images, dataset_of, embedding_network
from mmairl.evaluation.features import Extraction
from mmairl.evaluation.protocol import default_device
from mmairl.report.charts import WIDTH, still_picture
from mmairl.report.compare_page import short_names
from mmairl.report.page import write_page
from mmairl.report.sections import REACH, in_bytes
from mmairl.report.table import counted

NEAREST = 12  # number of nearest neighbors that the page lists for an image
SHEET = 16  # number of pictures along each side of a sheet, which is a JPEG with small pictures of many images
DUPLICATES = 60  # maximum number of groups of near-duplicates that the page shows
OUTLIERS = 24  # maximum number of outliers that the page shows
NO_VALUE = '(none)'
KINDS = 12  # if a column has more different numbers than this, images are colored by quintile


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
    """Write a page with maps of images, on which images with similar features are near each other.

    Args:
        checkpoint: One or more checkpoints in any format that `mmairl evaluate` reads. The page has a map for each. The
            features of the last checkpoint determine near-duplicates, outliers and groups.
        images: A folder with or without classes, an archive of `mmairl pack`, or a list. A list contains folders or archives
            (then images are colored by source), image files, or Pillow images.
        out: The HTML file to write.
        part: The network of the checkpoint to use: 'student' or 'teacher'.
        size: The side of the center crop of an image. Default: the side of the training crops if the checkpoint states it, else
            224.
        config: The config of the network. It is required unless the network is a ResNet or a ViT.
        colours: A CSV file, and the name of its column by which to color the images. The first column must contain the names
            of the images.
        patches: The number of images whose cells (regions of a ResNet's feature map, or patches of a ViT) are compared. These
            images are evenly spaced among all images.
        batch: The batch size.
        workers: The number of processes that load images.
        device: The device to compute on. Default: the GPU if there is one.
        seed: The seed of the random weights, of t-SNE and of k-means.

    Returns:
        The path of the page.

    Raises:
        UserError: If fewer than three images can be read, the features are all equal or not finite, or the CSV file contains
            none of the images.

    Example:
        >>> mmairl.map_images('runs/a/epoch_100.pth', 'images/', 'map.html')  # doctest: +SKIP
    """
    listed = [checkpoint] if isinstance(checkpoint, str | Path) else checkpoint
    paths = [Path(path) for path in listed]
    titles = ['after training']
    if len(paths) > 1:
        titles = short_names([path.absolute() for path in paths])
    features: dict[str, Tensor] = {}
    for path, title in zip(paths, titles):
        cfg, weights, normal, views, channels = embedding_network(path, part, config, size=size)
        dataset = dataset_of(images, views, channels)
        extraction = Extraction(
            **normal, batch_size=batch, device=device or default_device(), workers=workers
        )
        networks = [load_backbone(cfg, weights)]
        if not features:
            networks.append(load_backbone(cfg, None, seed=seed))
        thumbnails = Thumbnails(len(dataset), extraction, dataset.as_stored)
        (pixels, trained, *untrained), readable = extract_map_features(
            networks, dataset, extraction, thumbnails.add
        )
        require_differences(pixels, trained, len(dataset), str(path))
        if not features:
            features[f'raw pixels, {PIXELS} x {PIXELS}'] = pixels
            features['random weights'] = untrained[0]
        features[title] = trained
    kept = readable.nonzero().flatten().tolist()
    names = [name_of(dataset, i) for i in kept]
    classes, labels = by_column(names, *colours) if colours else by_class(dataset, kept, names)
    maps = [mapped(title, x, labels, seed) for title, x in features.items() if differ(x)]
    cells = None
    if patches:
        cells = find_nearest_cells(patches, kept, cfg, weights, dataset, extraction)
    data = dict(
        names=names,
        classes=classes,
        labels=labels.tolist(),
        side=thumbnails.side,
        sheet=SHEET,
        same=SAME,
        count=min(NEAREST, len(names) - 1),
        maps=[subject['data'] for subject in maps],
        cells=_cells_data(cells) if cells else None,
    )
    # A link to a position on a map contains this key, because the position is valid only for the maps of this page.
    data['key'] = sha256(repr(data).encode()).hexdigest()[:8]
    outstanding = find_outstanding(trained, maps[-1]['distance'])
    duplicates = counted(len(outstanding.duplicates), 'group')
    outliers = counted(len(outstanding.outliers), 'outlier')
    return write_page(
        out,
        'map.html',
        wide=True,
        title=f'{len(names):,} images by the features of {", ".join(path.name for path in paths)}',
        lead=f'{duplicates} of near-duplicates and {outliers} according to the features of the {part} of '
        f'{paths[-1]}. The maps by raw pixels and by random weights are for comparison.',
        data=data,
        maps=maps,
        names=names,
        unreadable=[name_of(dataset, i) for i in range(len(dataset)) if not readable[i]],
        groups=[_group_entry(group, labels, classes) for group in find_clusters(trained, seed)],
        sheets=thumbnails.sheets(),
        near=outstanding.near,
        far=outstanding.far,
        alike=outstanding.duplicates[:DUPLICATES],
        alike_count=len(outstanding.duplicates),
        alone=outstanding.outliers[:OUTLIERS],
        alone_count=len(outstanding.outliers),
    )


class Thumbnails:
    """Collect small pictures of all images in sheets, which are JPEGs with SHEET × SHEET pictures.

    If each picture were a JPEG, half of the bytes would be headers.

    Args:
        count: The number of images.
        extraction: The mean and std by which the images are normalized, and their device.
        as_stored: Whether images were read as stored in their files, instead of converted to 8-bit RGB.
    """

    def __init__(self, count: int, extraction: Extraction, as_stored: bool = False) -> None:
        # The more images there are, the smaller their pictures, so that the page can be sent by e-mail.
        self.side = 96 if count <= 2000 else 64 if count <= 20_000 else 40
        mean, std = extraction.mean, extraction.std
        if as_stored:
            mean, std = [0.5], [0.5 / REACH]
        shape = (-1, 1, 1)
        self.mean = torch.tensor(mean, device=extraction.device).view(shape)
        self.std = torch.tensor(std, device=extraction.device).view(shape)
        self.pictures: list[Tensor] = []

    def add(self, images: Tensor) -> None:
        """Add the pictures of the next images. Their pixel values are normalized by mean and std."""
        images = images * self.std + self.mean
        if images.shape[1] < 3:
            images = images[:, :1].expand(-1, 3, -1, -1)
        size = (self.side, self.side)
        small = F.interpolate(images[:, :3], size, mode='bilinear', antialias=True)
        self.pictures.append(in_bytes(small).cpu())

    def sheets(self) -> list[str]:
        """Return the sheets as JPEGs in base64. The last sheet is filled up with black."""
        sheets = []
        for pictures in torch.cat(self.pictures).split(SHEET**2):
            missing = SHEET**2 - len(pictures)
            padded = F.pad(pictures, (0, 0, 0, 0, 0, 0, 0, missing))
            image = to_pil_image(make_grid(padded, SHEET, padding=0))
            buffer = io.BytesIO()
            image.save(buffer, 'JPEG', quality=80, optimize=True)
            sheets.append(b64encode(buffer.getvalue()).decode())
        return sheets


def name_of(dataset: Dataset, index: int) -> str:
    """Return the path of an image relative to its folder or archive. Invalid characters are escaped."""
    return dataset.member(index).encode('utf-8', 'backslashreplace').decode()


def by_class(
    dataset: Dataset, kept: Sequence[int], names: Sequence[str]
) -> tuple[list[str], Tensor]:
    """Return the classes to color images by, and the class index of each image.

    The classes of the data set are used, or the top-level folders if it has no classes.
    """
    if dataset.classes:
        return list(dataset.classes), dataset.labels[kept]
    if isinstance(dataset, FileDataset):
        return _kinds([name.split('/')[0] if '/' in name else '' for name in names])
    return _kinds([''] * len(names))


def _kinds(values: Sequence[str]) -> tuple[list[str], Tensor]:
    kinds, labels = np.unique(values, return_inverse=True)
    if len(kinds) < 2:
        return [], torch.full((len(values),), -1)
    return [str(kind) or NO_VALUE for kind in kinds], torch.from_numpy(labels)


def by_column(names: Sequence[str], path: str | Path, column: str) -> tuple[list[str], Tensor]:
    """Return the values in a column of a CSV file as classes to color images by, and the class index of each image.

    If the column has more than KINDS different numbers, the classes are its quintiles.
    """
    given, _ = values_of(names, read_column(path, column), path)
    values = [given.get(name, '') for name in names]
    if not any(values):
        raise UserError(
            f"--colours: the first column of {path} contains no name of an image; expected names such as '{names[0]}'",
            code='no-named-image',
        )
    try:
        numbers = np.array([float(value or 'nan') for value in values])
    except ValueError:
        return _kinds(values)
    is_known = np.isfinite(numbers)
    if len(np.unique(numbers[is_known])) <= KINDS:
        return _kinds(values)
    edges = np.quantile(numbers[is_known], np.linspace(0, 1, 6))
    fifths = [f'{low:.4g} to {high:.4g}' for low, high in pairwise(edges)]
    labels = np.searchsorted(edges[1:-1], numbers, side='right')
    labels[~is_known] = len(fifths)
    return [*fifths, NO_VALUE], torch.from_numpy(labels)


def mapped(title: str, features: Tensor, labels: Tensor, seed: int) -> dict[str, Any]:
    """Return a map of the images, with the nearest neighbors of each image.

    It consists of data for the interactive map and of a still picture for readers without JavaScript.
    """
    points = tsne(features, seed)
    low = points.min(axis=0)
    high = points.max(axis=0)
    centered = points - (low + high) / 2
    shares = centered / (high - low).max() + 0.5
    places = np.round(65535 * shares)
    count = min(NEAREST, len(features) - 1)
    distance, position = nearest_cells(features[:, None], count)
    data = dict(title=title, places=_packed(places, '<u2'), **_neighbors(distance, position))
    dots = []
    for label in labels.unique():
        x, y = points[labels == label].T
        dots.append(dict(x={'': x}, y=y))
    still = still_picture(dots, dots=True, height=WIDTH)
    return dict(title=title, data=data, distance=distance[:, 0], **still)


def _neighbors(distance: Tensor, position: Tensor) -> dict[str, str]:
    return dict(near=_packed(position.numpy(), '<u4'), far=_packed(distance.numpy(), '<f4'))


def _packed(values: np.ndarray, kind: str) -> str:
    return b64encode(values.astype(kind).tobytes()).decode()


def _cells_data(cells: ImageCells) -> dict[str, Any]:
    return dict(
        of=cells.images,
        rows=cells.rows,
        columns=cells.columns,
        count=cells.distance.shape[1],
        **_neighbors(cells.distance, cells.position),
    )


def _group_entry(group: Group, labels: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Return the size of a group of images, its central images, and the percentage of its most common class."""
    most = ''
    if classes:
        counts = Counter(labels[group.members].tolist())
        [(kind, count)] = counts.most_common(1)
        if kind >= 0:
            most = f'{100 * count / len(group.members):.0f} % {classes[kind]}'
    return dict(size=len(group.members), central=group.central, most=most)
