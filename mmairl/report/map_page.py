"""Write a page with a map of images, and with outliers and groups of images."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from torch.utils.data import Dataset
from torchvision.transforms.v2.functional import resize
from torchvision.utils import make_grid

from mmairl.analysis.feature_map import map_features
from mmairl.data.decode import to_unit
from mmairl.evaluation.embed import Images, dataset_of, embed, embedding_network
from mmairl.report.page import Page, macro
from mmairl.report.sections import picture
from mmairl.report.table import counted

CELLS = 28  # the map has at most one image in each of CELLS x CELLS cells
SIDE = 56  # side of a cell in pixels
ROWS = 24  # maximum number of outliers and groups that the page shows
SHOWN = 11  # number of images that the page shows of a group


def map_images(
    checkpoint: str | Path, images: Images, out: str | Path, *, seed: int = 0, **options: Any
) -> Path:
    """Write a page with a map of images, on which images with similar features are near each other.

    Args:
        checkpoint: A checkpoint in any format that `mmairl.embed` reads.
        images: The images, as in `mmairl.embed`.
        out: The HTML file to write.
        seed: The seed of t-SNE and of k-means.
        **options: Further arguments of `mmairl.embed`, such as `part`, `size` and `workers`.

    Returns:
        The path of the page.

    Raises:
        UserError: If fewer than three images can be read, or all features are equal or not finite.

    Example:
        >>> mmairl.map_images('runs/a/epoch_100.pth', 'images/', 'map.html')  # doctest: +SKIP
    """
    x, names = embed(checkpoint, images, **options)
    found = map_features(torch.from_numpy(x), seed)
    network = {key: options[key] for key in ('part', 'config') if key in options}
    dataset = dataset_of(images, [], embedding_network(checkpoint, **network)[-1].channels)
    index_of = {dataset.name(index): index for index in range(len(dataset))}
    shown = Thumbnails(dataset, [index_of[name] for name in names])
    page = Page(
        f'{len(names):,} images by the features of {Path(checkpoint).name}',
        f'{counted(len(found.groups), "group")} of similar images, and the images that differ most from all others.',
    )
    drawn, count = shown.drawn_at(found.places)
    page.add(
        'Map',
        'Images with similar features are near each other. Two dimensions cannot preserve all distances, and the sizes of '
        f'islands mean little. Where images overlap, the map shows one of them: {count} of {len(names):,}.',
        drawn,
    )
    page.add(
        'Groups',
        'k-means of the features found these groups. The images nearest to the center of a group are first. What they have '
        'in common is what the network attends to.',
        Markup('').join(shown.row(group) for group in found.groups[:ROWS])
        or 'None: too few images.',
    )
    page.add(
        'Outliers',
        'These images are farthest from their nearest neighbor, the farthest first. Check whether they belong to the data.',
        shown.row(found.outliers[:ROWS], ROWS),
    )
    return page.write(out)


@dataclass(frozen=True)
class Thumbnails:
    """Draws small pictures of images.

    Args:
        dataset: The data set that reads the images.
        indices: The index in the data set of each image.
    """

    dataset: Dataset
    indices: Sequence[int]

    def name(self, image: int) -> str:
        return self.dataset.member(self.indices[image])

    def row(self, images: Sequence[int], count: int = SHOWN) -> Markup:
        """Return the first `count` images in a row, below their number and most common folder."""
        folders = Counter(self.name(image).rpartition('/')[0] for image in images)
        [(folder, times)] = folders.most_common(1)
        head = counted(len(images), 'image')
        if folder:
            head += f', {100 * times / len(images):.0f} % in {folder}'
        thumbs = [
            (picture(self.dataset.raw(self.indices[image]), self.name(image), 96), self.name(image))
            for image in images[:count]
        ]
        return Markup('<h3>{}</h3>').format(head) + macro('pictures.html', 'thumbs', thumbs)

    def drawn_at(self, places: np.ndarray) -> tuple[Markup, int]:
        """Return one picture with thumbnails at their places, and their number. Each cell has the first image in it."""
        columns, rows = (places.T * (CELLS - 1)).round().astype(int)
        cells, first = np.unique(CELLS * rows + columns, return_index=True)
        squares = torch.ones(CELLS * CELLS, 3, SIDE, SIDE)
        for cell, image in zip(cells.tolist(), first.tolist()):
            small = to_unit(self.dataset.raw(self.indices[image]))[:3]
            squares[cell] = resize(small, [SIDE, SIDE])
        grid = make_grid(squares, nrow=CELLS, padding=0)
        return picture(grid, f'A map of {len(first)} images', style='map'), len(first)
