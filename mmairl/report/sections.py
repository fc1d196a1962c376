"""The sections that pages are built of, each with one plain sentence for a reader who does not know the field."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from mmengine import Config
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from mmairl.evaluation.features import Features
from mmairl.evaluation.knn import nearest
from mmairl.evaluation.protocol import Result
from mmairl.registry import DATASETS, MODELS
from mmairl.report.embedding import plane
from mmairl.report.figures import feature_map, score_bars, training_curves
from mmairl.report.page import Page
from mmairl.report.pictures import neighbour_rows, view_pairs
from mmairl.report.scalars import read_scalars
from mmairl.report.table import html_table

MAPPED, NEIGHBOURS, QUERIES, PAIRS = 1000, 7, 8, 8
METHODS = {'tsne': 't-SNE', 'umap': 'UMAP'}


def add_results(page: Page, results: Sequence[Result]) -> None:
    page.add(
        'How good are the features?',
        'Both tests ask whether images of one class lie close together: k-NN lets the nearest labelled images vote, '
        'logistic regression draws straight borders between the classes. Pre-training never saw a label.',
        score_bars(results) + html_table(results),
        'Top-1 accuracy in percent on images that neither pre-training nor the tests have learnt from.',
    )


def add_curves(page: Page, work_dir: str) -> None:
    page.add(
        'How did the training go?',
        'The loss falls as the network learns to tell that two altered copies come from the same image; instance '
        'accuracy is how often it picks the right copy from among all the others.',
        training_curves(read_scalars(work_dir)),
        'The teacher is a slow running average of the student: the nearer its momentum to 1, the slower it follows.',
    )


def add_views(page: Page, cfg: Config, seed: int) -> None:
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    chosen = np.random.default_rng(seed).choice(len(dataset), min(PAIRS, len(dataset)), replace=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first, second = augmented(cfg, dataset, chosen)
    page.add(
        'What does the network see?',
        'Each training image (left) is cropped and altered at random, twice. All that the network is told is that '
        'the two copies belong together; it is never told what they show.',
        view_pairs([dataset.raw(int(i)) for i in chosen], first, second),
    )


def augmented(cfg: Config, dataset: Dataset, chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The first two views of the chosen images exactly as training makes them, as uint8."""
    preprocessor = MODELS.build(cfg.model.data_preprocessor)
    views = preprocessor(default_collate([dataset[int(i)] for i in chosen]), training=True)['inputs']
    mean, std = (
        torch.tensor(list(v)).view(-1, 1, 1)
        for v in (cfg.model.data_preprocessor.mean, cfg.model.data_preprocessor.std)
    )
    first, second = ((255 * (view.float() * std + mean)).round().clamp(0, 255).byte() for view in views[:2])
    return first, second


def add_maps(
    page: Page, features: dict[str, Features], classes: Sequence[str], seed: int, method: str = 'tsne'
) -> None:
    """A map for each entry of `features`, of the same images."""
    maps = []
    for number, (title, of) in enumerate(features.items()):
        chosen = np.random.default_rng(seed).permutation(len(of.x))[:MAPPED]
        points = plane(of.x[chosen], seed, method)
        maps.append(feature_map(points, of.y[chosen].numpy(), classes, f'map-{number}', title))
    page.add(
        'Which images does it find alike?',
        'Every dot is an image and its colour is its class; images that the features find alike lie near each other. '
        'Islands of one colour are classes that were discovered without a label.',
        f'<div class="plots">{"".join(maps)}</div>',
        f'{METHODS[method]} of {min(MAPPED, len(of.x))} test images. Distances between islands mean little.',
    )


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
    found = [[(train_picture(int(i)), int(bank.y[i])) for i in row] for row in positions[:, itself:]]
    page.add(
        title,
        f'For the first test image of {len(firsts)} classes (left, not hand-picked), the {NEIGHBOURS} other images '
        'with the most similar features.',
        neighbour_rows([(test_picture(i), int(query.y[i])) for i in firsts], found, classes)
        + '<figcaption><span class="swatch right-swatch"></span>same class '
        '<span class="swatch wrong-swatch"></span>another class</figcaption>',
    )
