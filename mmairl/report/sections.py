"""Parts of several pages: pictures of images, feature maps, nearest neighbors, and the names of curves."""

import base64
import io
from collections.abc import Callable, Sequence

import numpy as np
import torch
from markupsafe import Markup
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from mmairl.analysis.feature_map import tsne
from mmairl.data.datasets import innermost_dataset
from mmairl.data.decode import to_unit
from mmairl.evaluation.features import Features
from mmairl.evaluation.neighbors import nearest
from mmairl.report.charts import chart
from mmairl.report.page import Page, fill

MAPPED = 1000  # images on a map
NEIGHBORS = 7
QUERIES = 8
REACH = (
    3  # standard deviations between the mean and black or white, for images that are no photographs
)
CURVES = {
    'loss': 'loss',
    'instance_accuracy': 'instance accuracy, %',
    'lr': 'learning rate',
    'momentum': 'teacher momentum',
}
FRACTIONS = {'instance_accuracy', 'probe_accuracy'}  # the online k-NN logs percent
Picture = tuple[str, str]  # a PNG in base64 and its alternative text


def percent(
    name: str, curve: tuple[Sequence[int], Sequence[float]]
) -> tuple[list[int], list[float]]:
    """Return a curve, in percent if it is an accuracy that is logged as a fraction."""
    steps, values = curve
    scale = 100 if name in FRACTIONS else 1
    return list(steps), [scale * value for value in values]


def some(dataset: Dataset, count: int, seed: int) -> list[int]:
    """Return the indices of up to `count` random images, without repetition."""
    generator = np.random.default_rng(seed)
    count = min(count, len(dataset))
    return generator.choice(len(dataset), count, replace=False).tolist()


def augmented(
    dataset: Dataset, preprocessor: nn.Module, chosen: Sequence[int], seed: int = 0
) -> list[Tensor]:
    """Return each view of the chosen images exactly as in training, as uint8."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        batch = default_collate([dataset[index] for index in chosen])
        views = preprocessor(batch, training=True)['inputs']
    low, high = black_and_white(dataset, preprocessor)
    images = [view.float() * preprocessor.std + preprocessor.mean for view in views]
    return [in_bytes(image, low, high) for image in images]


def black_and_white(
    dataset: Dataset, preprocessor: nn.Module
) -> tuple[Tensor | float, Tensor | float]:
    """Return the values to show as black and white: 0 and 1 for photographs, and a range around the mean otherwise."""
    if not innermost_dataset(dataset).as_stored:
        return 0.0, 1.0
    reach = REACH * preprocessor.std
    return preprocessor.mean - reach, preprocessor.mean + reach


def in_bytes(values: Tensor, low: Tensor | float = 0.0, high: Tensor | float = 1.0) -> Tensor:
    scaled = (values - low) / (high - low)
    return (255 * scaled).round().clamp(0, 255).byte()


def picture(image: Tensor, alt: str) -> Picture:
    """Return a CHW image as PNG, with its alternative text. Of other channel counts, the first three or the first."""
    shown = image[:3] if len(image) >= 3 else image[:1]
    if shown.dtype is not torch.uint8:
        shown = in_bytes(to_unit(shown))
    array = shown.permute(1, 2, 0).numpy()
    if array.shape[2] == 1:
        array = array.squeeze(2)
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format='PNG')
    return base64.b64encode(buffer.getvalue()).decode(), alt


def add_maps(page: Page, features: dict[str, Features], classes: Sequence[str], seed: int) -> None:
    """Add a t-SNE map of the same images for each entry of `features`."""
    maps = [_map(title, bank, classes, seed) for title, bank in features.items()]
    count = min(MAPPED, *(len(bank.x) for bank in features.values()))
    page.add(
        'Feature map',
        'Every dot is an image, colored by its class. Similar images are near each other, so islands of one color are '
        'classes that were learned without labels.',
        maps,
        f't-SNE of {count} test images. Distances between islands mean little.',
    )


def _map(title: str, bank: Features, classes: Sequence[str], seed: int) -> Markup:
    chosen = np.random.default_rng(seed).permutation(len(bank.x))[:MAPPED]
    points = tsne(bank.x[chosen], seed)
    labels = bank.y[chosen].numpy()
    order = points[:, 0].argsort()
    points = points[order]
    labels = labels[order]
    series = {str(name): tuple(points[labels == label].T) for label, name in enumerate(classes)}
    return chart(series, title, dots=True, ticks=[''])


Pictures = Callable[[int], Tensor]  # the stored image of a row of the features
Neighbor = tuple[Picture, bool]  # its picture, and whether its class is that of the query


def add_neighbours(
    page: Page,
    train: tuple[Pictures, Features],
    test: tuple[Pictures, Features],
    classes: Sequence[str],
    title: str = 'Nearest neighbors',
) -> None:
    """Add the first test image of each class with its nearest training images.

    Args:
        page: The page to extend.
        train: The images and features to search. If they are those of `test`, the query itself is excluded.
        test: The images and features of the queries.
        classes: The names of the classes.
        title: The heading.
    """
    train_picture, bank = train
    test_picture, query = test
    labels = query.y.unique()[:QUERIES]
    firsts = [int((query.y == label).nonzero()[0]) for label in labels]
    skipped = int(bank is query)
    _, positions = nearest(query.x[firsts], bank.x, NEIGHBORS + skipped)

    def neighbor(row: int, label: int) -> Neighbor:
        own_label = int(bank.y[row])
        return picture(train_picture(row), str(classes[own_label])), own_label == label

    shown = []
    for first, rows in zip(firsts, positions[:, skipped:].tolist()):
        label = int(query.y[first])
        image = picture(test_picture(first), str(classes[label]))
        shown.append((image, [neighbor(row, label) for row in rows]))
    page.add(
        title,
        f'The first test image of {len(firsts)} classes (left, not selected by hand), and the {NEIGHBORS} other images with '
        'the most similar features.',
        fill('pictures.html', pairs=(), neighbours=shown),
    )
