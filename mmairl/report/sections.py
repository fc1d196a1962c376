"""Parts of several pages: images as they are shown, maps, nearest neighbours, and the names of curves."""

import base64
import io
from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from mmairl.analysis.feature_map import tsne
from mmairl.data.datasets import innermost_dataset
from mmairl.data.decode import to_unit
from mmairl.evaluation.features import Features
from mmairl.evaluation.knn import nearest
from mmairl.report.charts import chart
from mmairl.report.page import Page, fill

MAPPED, NEIGHBOURS, QUERIES = 1000, 7, 8
REACH = 3  # standard deviations from the mean to black and to white, where an image is no photograph
CURVES = {
    'loss': 'loss',
    'instance_accuracy': 'instance accuracy, %',
    'lr': 'learning rate',
    'momentum': 'teacher momentum',
}
FRACTIONS = ('instance_accuracy', 'probe_accuracy')  # the online k-NN logs percent


def percent(name: str, curve: tuple[Sequence[int], Sequence[float]]) -> tuple[list[int], list[float]]:
    """Return a curve with an accuracy that is logged as a fraction in percent, anything else as it is."""
    steps, values = curve
    return list(steps), [100 * value for value in values] if name in FRACTIONS else list(values)


def some(dataset: Dataset, count: int, seed: int) -> list[int]:
    """Up to `count` images, drawn without putting back."""
    return np.random.default_rng(seed).choice(len(dataset), min(count, len(dataset)), replace=False).tolist()


def augmented(dataset: Dataset, preprocessor: nn.Module, chosen: Sequence[int], seed: int = 0) -> list[Tensor]:
    """Each view of the chosen images exactly as training makes it, as uint8."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        views = preprocessor(default_collate([dataset[i] for i in chosen]), training=True)['inputs']
    low, high = black_and_white(dataset, preprocessor)
    return [in_bytes(view.float() * preprocessor.std + preprocessor.mean, low, high) for view in views]


def black_and_white(dataset: Dataset, preprocessor: nn.Module) -> tuple[Tensor | float, Tensor | float]:
    """The values that a page shows as black and white: 0 and 1 of photographs, and others around each channel's mean."""
    if not innermost_dataset(dataset).as_stored:
        return 0.0, 1.0
    return preprocessor.mean - REACH * preprocessor.std, preprocessor.mean + REACH * preprocessor.std


def in_bytes(values: Tensor, low: Tensor | float = 0.0, high: Tensor | float = 1.0) -> Tensor:
    return (255 * ((values - low) / (high - low))).round().clamp(0, 255).byte()


def picture(image: Tensor, alt: str) -> tuple[str, str]:
    """A CHW image as PNG in base64, with the text that stands for it: its first three channels, or its first."""
    shown = image[:3] if len(image) >= 3 else image[:1]
    shown = shown if shown.dtype is torch.uint8 else in_bytes(to_unit(shown))
    array, buffer = shown.permute(1, 2, 0).numpy(), io.BytesIO()
    Image.fromarray(array.squeeze(2) if array.shape[2] == 1 else array).save(buffer, format='PNG')
    return base64.b64encode(buffer.getvalue()).decode(), alt


def add_maps(page: Page, features: dict[str, Features], classes: Sequence[str], seed: int) -> None:
    """A map for each entry of `features`, of the same images."""
    maps = []
    for title, bank in features.items():
        chosen = np.random.default_rng(seed).permutation(len(bank.x))[:MAPPED]
        points, labels = tsne(bank.x[chosen], seed), bank.y[chosen].numpy()
        along = points[:, 0].argsort()
        points, labels = points[along], labels[along]
        series = {str(name): tuple(points[labels == label].T) for label, name in enumerate(classes)}
        maps.append(chart(series, title, dots=True, ticks=['']))
    page.add_named('maps', count=min(MAPPED, len(bank.x)), figure=maps)


Pictures = Callable[[int], Tensor]  # an image as stored, by its row in the features


def add_neighbours(
    page: Page,
    train: tuple[Pictures, Features],
    test: tuple[Pictures, Features],
    classes: Sequence[str],
    title: str = 'What lies nearest?',
) -> None:
    """The first test image of each class with its nearest training images, or nearest others of one and the same set."""
    (train_picture, bank), (test_picture, query) = train, test
    firsts = [int((query.y == label).nonzero()[0]) for label in query.y.unique()[:QUERIES]]
    itself = int(bank is query)
    _, positions = nearest(query.x[firsts], bank.x, NEIGHBOURS + itself)

    def neighbour(row: int, label: int) -> tuple[tuple[str, str], bool]:
        its_label = int(bank.y[row])
        return picture(train_picture(row), str(classes[its_label])), its_label == label

    shown = []
    for first, row in zip(firsts, positions[:, itself:].tolist()):
        label = int(query.y[first])
        shown.append((picture(test_picture(first), str(classes[label])), [neighbour(i, label) for i in row]))
    drawn = fill('pictures.html', pairs=(), neighbours=shown)
    page.add_named('neighbours', heading=title, classes=len(firsts), count=NEIGHBOURS, figure=drawn)
