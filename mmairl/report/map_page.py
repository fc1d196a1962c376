"""A map of images: what networks find alike, beside pixels and random weights, and which images stand out."""

import base64
import io
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from mmairl.checkpoints.read import Backbone
from mmairl.data.datasets import FileDataset
from mmairl.data.mixture import Mixture
from mmairl.data.splits import read_column, values_of
from mmairl.errors import Diverged, UserError, cleared_frames
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.embed import Images, dataset_of, embedding_network, write_patches
from mmairl.evaluation.features import Extraction
from mmairl.evaluation.protocol import default_device
from mmairl.models.backbones import pooled
from mmairl.report.compare_page import names_of
from mmairl.report.figures import feature_map, png
from mmairl.report.page import write_page
from mmairl.report.sections import REACH, plane, principal

PIXELS = 16  # the side of the small images whose pixels are features
NEAREST, NEAREST_CELLS = 12, 8  # of an image, and of a cell
SHEET = 16  # pictures along the side of a sheet
SAME = 1e-6  # smaller cosine distances are float32's rounding
BLOCK = 256  # rows that are compared with all others at once
ALIKE, ALONE, CENTRAL = 60, 24, 8  # shown of each kind
GROUPS, SAMPLED = (4, 8, 12, 16, 24), 2000
KINDS = 12  # a column with more numbers than these is coloured by its quintiles


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
    paths = [Path(path) for path in ([checkpoint] if isinstance(checkpoint, str | Path) else checkpoint)]
    titles = names_of([path.absolute() for path in paths]) if len(paths) > 1 else ['after training']
    features: dict[str, Tensor] = {}
    for path, title in zip(paths, titles):
        cfg, weights, normal, views, channels = embedding_network(path, part, config, size=size)
        dataset = dataset_of(images, views, channels)
        how = Extraction(**normal, batch_size=batch, device=device or default_device(), workers=workers)
        networks = [load_backbone(cfg, weights)]
        if not features:
            networks.append(load_backbone(cfg, None, seed=seed))
            sheets = Sheets(len(dataset), how, dataset.as_stored)
        (pixels, trained, *untrained), readable = look(networks, dataset, how, None if features else sheets)
        require_differences(pixels, trained, len(dataset), str(path))
        for random in untrained:
            features |= {f'raw pixels, {PIXELS} x {PIXELS}': pixels, 'random weights': random}
        features[title] = trained
    kept = readable.nonzero().flatten().tolist()
    names = [name_of(dataset, i) for i in kept]
    classes, labels = by_column(names, *colours) if colours else by_class(dataset, kept, names)
    maps = [mapped(title, x, labels, classes, seed) for title, x in features.items() if differ(x)]
    data = dict(
        names=names, classes=classes, labels=labels.tolist(), side=sheets.side, sheet=SHEET, same=SAME, cells=None
    )
    data |= dict(count=min(NEAREST, len(names) - 1), maps=[subject['data'] for subject in maps])
    if patches:
        data['cells'] = cells(patches, kept, cfg, weights, dataset, how)
    data['key'] = sha256(repr(data).encode()).hexdigest()[:8]  # by which a link knows whether it was made here
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
        groups=groups(trained, labels, classes, seed),
        sheets=sheets.finished(),
        **standing_out(trained, maps[-1]['distance']),
    )


class Sheets:
    """Pictures of all images, SHEET by SHEET in one JPEG, since a file for each would be half header."""

    def __init__(self, count: int, how: Extraction, as_stored: bool = False) -> None:
        self.as_stored = as_stored
        self.side = 96 if count <= 2000 else 64 if count <= 20_000 else 40  # so that the page can be mailed
        self.mean, self.std = (torch.tensor(list(v), device=how.device).view(-1, 1, 1) for v in (how.mean, how.std))
        self.waiting = torch.empty(0, 3, self.side, self.side, dtype=torch.uint8)  # never more than a sheet and a batch
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


@torch.no_grad()
def look(
    networks: Sequence[nn.Module], dataset: Dataset, how: Extraction, sheets: Sheets | None
) -> tuple[list[Tensor], Tensor]:
    """In one pass the readable images' pixels and features, and which are readable; pictures go to the sheets."""
    for network in networks:
        network.to(how.device, memory_format=torch.channels_last).eval()
    stores: list[Tensor] = []
    readable, count = [], 0
    for images, _, fine in how.images(dataset, 'map'):
        readable.append(fine)
        if not fine.any():
            continue
        images = images[fine.to(images.device)]
        parts = [F.adaptive_avg_pool2d(images, PIXELS).flatten(1), *(pooled(network(images)) for network in networks)]
        stores = stores or [torch.empty(len(dataset), part.shape[1]) for part in parts]
        for store, part in zip(stores, parts):
            store[count : count + len(part)] = part
        if sheets:
            sheets.add(images)
        count += len(images)
    return [store[:count] for store in stores], torch.cat(readable)


def differ(x: Tensor) -> bool:
    """Say whether any row differs in direction from the first; rows of zeros have none, all of them alike."""
    first = F.normalize(x[:1])
    return any((F.normalize(part) - first).square().sum(dim=1).max() / 2 > SAME for part in x.split(BLOCK))


def require_differences(pixels: Tensor, trained: Tensor, asked: int, checkpoint: str) -> None:
    if len(trained) < 3:
        raise UserError(
            f'a map needs three images, and of the {asked} here {len(trained)} can be read; give more images'
        )
    if not trained.isfinite().all():
        raise Diverged(
            f'{checkpoint} gives NaN or infinite features: the pre-training has diverged; take an earlier one'
        )
    if not differ(trained):
        if (pixels == pixels[:1]).all():
            raise UserError(f'all {len(trained)} images are the same, so no map of them can be drawn; give others')
        raise UserError(
            f'{checkpoint} gives all {len(trained)} images the same features, so no map can be drawn: the network has '
            'collapsed; take another checkpoint, and look at its run by tools/report.py health'
        )


def name_of(dataset: Dataset, index: int) -> str:
    """An image's path below its folder or in its archive, in characters that a page can have."""
    name = dataset.member(index) if hasattr(dataset, 'member') else dataset.name(index)
    return name.encode('utf-8', 'backslashreplace').decode()


def by_class(dataset: Dataset, kept: Sequence[int], names: Sequence[str]) -> tuple[list[str], Tensor]:
    """Name the set of each image, where there are several, or its class: an archive's, or its uppermost folder."""
    if isinstance(dataset, Mixture):
        return list(dataset.sets), dataset.origins[kept]
    if dataset.classes:
        return list(dataset.classes), dataset.labels[kept]
    return _kinds([name.split('/')[0] if '/' in name and isinstance(dataset, FileDataset) else '' for name in names])


def _kinds(values: Sequence[str]) -> tuple[list[str], Tensor]:
    kinds = sorted(set(values))
    if len(kinds) < 2:
        return [], torch.full((len(values),), -1)
    return [kind or '(none)' for kind in kinds], torch.tensor([kinds.index(value) for value in values])


def by_column(names: Sequence[str], path: str | Path, column: str) -> tuple[list[str], Tensor]:
    """The images' values in a column of a CSV, as kinds; many numbers become fifths of equal size."""
    given, _ = values_of(names, read_column(path, column), path)
    values = [given.get(name, '') for name in names]
    if not any(values):
        raise UserError(f'the first column of {path} names none of the images; it should say {names[0]}, for example')
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


def mapped(title: str, x: Tensor, labels: Tensor, classes: Sequence[str], seed: int) -> dict[str, Any]:
    """A subject's map with each image's neighbours, as a picture and as the data of the canvas."""
    points = plane(x, seed)
    low, high = points.min(axis=0), points.max(axis=0)
    shown = np.round(((points - (low + high) / 2) / (high - low).max() + 0.5) * 65535)
    near, distance = nearest(x[:, None], min(NEAREST, len(x) - 1))
    kinds = (labels.clamp_min(0).numpy(), classes or ['image'])
    data = dict(title=title, places=_packed(shown.astype('<u2')), **near)
    return dict(title=title, data=data, still=png(feature_map(points, *kinds, title)), distance=distance[:, 0])


def cells(
    many: int, kept: Sequence[int], cfg: Config, weights: Backbone, dataset: Dataset, how: Extraction
) -> dict[str, Any]:
    """Each cell's nearest in other images, of some images among those that are kept, as the data of the page."""
    chosen = np.unique(np.linspace(0, len(kept) - 1, min(many, len(kept))).round().astype(int)).tolist()
    with TemporaryDirectory() as folder:
        some = Subset(dataset, [kept[place] for place in chosen])
        x, places, _ = write_patches(Path(folder) / 'cells.npy', cfg, weights, some, how)
        near, _ = nearest(torch.tensor(x), count := min(NEAREST_CELLS, len(chosen) - 1))
    rows, columns = (len(np.unique(places[:, axis])) for axis in (0, 1))
    return dict(of=chosen, rows=rows, columns=columns, count=count, **near)


def nearest(x: Tensor, k: int) -> tuple[dict[str, str], Tensor]:
    distance, position = neighbours(x, k)
    return dict(near=_packed(position.numpy().astype('<u4')), far=_packed(distance.numpy().astype('<f4'))), distance


def _packed(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()


def neighbours(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Cosine distances and places, both (N * cells, k), of the nearest cells of x (N, cells, C), one each of k other images."""
    images, cells, _ = x.shape
    bank, found = F.normalize(x.flatten(0, 1)), []
    own = torch.arange(images).repeat_interleave(cells)
    for block, itself in zip(bank.split(BLOCK), own.split(BLOCK)):
        similarity, cell = (block @ bank.T).view(-1, images, cells).max(2)
        near, image = similarity.scatter_(1, itself[:, None], -torch.inf).topk(k)
        found.append(((1 - near).clamp_min(0), image * cells + cell.gather(1, image)))
    return tuple(map(torch.cat, zip(*found)))


def fences(distances: Tensor) -> tuple[float, float]:
    """Tukey's fences of the logarithms: distances below the first are far too small, above the second too large."""
    logs = distances[distances > SAME].double().log()
    if len(logs) < 4:
        return SAME, float('inf')
    low, high = logs.quantile(torch.tensor([0.25, 0.75], dtype=torch.float64)).tolist()
    return max(SAME, np.exp(low - 1.5 * (high - low))), np.exp(high + 1.5 * (high - low))


def standing_out(x: Tensor, distance: Tensor) -> dict[str, Any]:
    """Groups of near-duplicates and images far from all others, by the fences of the `distance` of each to its nearest."""
    near, far = fences(distance)
    close = (distance <= near + SAME).nonzero().flatten()  # no other image has a duplicate
    alike = [(close[rows].tolist(), float(distance[close[rows]].max())) for rows in linked(x[close], near)]
    order = distance.argsort(descending=True, stable=True).tolist()
    alone = [(i, float(distance[i])) for i in order if distance[i] > far]
    counts = dict(alike_count=len(alike), alone_count=len(alone))
    return dict(near=near, far=far, alike=alike[:ALIKE], alone=alone[:ALONE], **counts)


def linked(x: Tensor, least: float) -> list[np.ndarray]:
    """Groups of rows, the largest first, that steps of cosine distance `least` or less lead through."""
    unit, group = F.normalize(x), np.arange(len(x))
    for start in range(0, len(x), BLOCK):
        distance = 1 - unit[start : start + BLOCK] @ unit[start:].T
        rows, columns = group[(distance <= least).nonzero().T.numpy() + start]
        steps = coo_array((np.ones(len(rows), bool), (rows, columns)), shape=(len(x), len(x)))
        group = connected_components(steps, directed=False)[1][group]
    linked_rows = [np.flatnonzero(group == number) for number in np.flatnonzero(np.bincount(group) > 1)]
    return sorted(linked_rows, key=len, reverse=True)


def groups(x: Tensor, labels: Tensor, classes: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """Groups by k-means of the 30 principal components, as many as have the best silhouette, each with its central images."""
    x = principal(x, seed)
    tried = {count: KMeans(count, n_init=4, random_state=seed).fit(x) for count in GROUPS if 4 * count <= len(x)}
    if not tried:
        return []
    some = {'sample_size': min(SAMPLED, len(x)), 'random_state': seed}
    best = max(tried.values(), key=lambda fit: silhouette_score(x, fit.labels_, **some))
    shown = []
    for group, centre in enumerate(best.cluster_centers_):
        own = np.flatnonzero(best.labels_ == group)
        central = own[np.argsort(np.square(x[own] - centre).sum(axis=1), kind='stable')[:CENTRAL]].tolist()
        kinds = Counter(labels[own].tolist()).most_common(1) if classes else []
        most = [f'{100 * many / len(own):.0f} % {classes[kind]}' for kind, many in kinds if kind >= 0]
        shown.append(dict(size=len(own), central=central, most=''.join(most)))
    return sorted(shown, key=lambda entry: -entry['size'])
