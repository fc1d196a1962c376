"""Run the demo: pre-train a small network, compare it with two baselines, and write a page about it."""

from pathlib import Path

from markupsafe import Markup
from mmengine import Config
from mmengine.runner import find_latest_checkpoint
from torch.utils.data import Dataset

from mmairl.analysis.feature_map import tsne
from mmairl.engine.run import train
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.features import Features, extract, extraction
from mmairl.evaluation.knn import knn_predictions
from mmairl.evaluation.sets import evaluation_sets
from mmairl.report.figures import embedded, lines
from mmairl.report.page import Page, macro
from mmairl.report.sections import pictured_views
from mmairl.report.table import Table

K = 20
PAIRS = 4  # number of images that the page shows with their views
MAPPED = 1000  # number of images on a map
SCORE = f'k-NN accuracy, % (k = {K})'
PIXELS = 'raw pixels'
RANDOM = 'random network'
TRAINED = 'trained network'


def run_demo(cfg: Config, seed: int, device: str) -> Path:
    """Pre-train with the config `cfg` and the given seed, compare the student with two baselines, and write the page."""
    cfg.randomness = {**cfg.get('randomness', {}), 'seed': seed}
    print(f'1/3 pre-training, seed {seed}', flush=True)
    train(cfg)

    print('2/3 measuring the features', flush=True)
    checkpoint = find_latest_checkpoint(cfg.work_dir)
    networks = {
        PIXELS: None,
        RANDOM: load_backbone(cfg, None, seed=seed),
        TRAINED: load_backbone(cfg, checkpoint, seed=seed),
    }
    datasets = [dataset for _, dataset in evaluation_sets(cfg).values()]
    how = extraction(cfg, device)
    features = {}
    scores = {}
    for name, network in networks.items():
        features[name] = [extract(network, dataset, how) for dataset in datasets]
        bank, queries = features[name]
        right = knn_predictions(bank, queries, [K], device=device)[K] == queries.y
        scores[name] = 100 * int(right.sum()) / len(right)
    print(demo_scores(scores).text(f'{len(right)} test images'))
    print(verdict(scores))

    print('3/3 drawing the page', flush=True)
    page = draw_demo(cfg, datasets, scores, features, seed)
    page.add(
        'Method',
        f'MoCo v2+ with the config {Path(cfg.filename).name}, seed {seed}. Neither the seed nor the checkpoint was selected '
        'by its result.',
    )
    return page.write(Path(cfg.work_dir) / 'report.html')


def demo_scores(scores: dict[str, float]) -> Table:
    return Table(['features', SCORE], [*scores.items()], scores=[SCORE])


def verdict(scores: dict[str, float]) -> str:
    """Return a sentence that compares the trained network with the better of the two baselines."""
    better = max((PIXELS, RANDOM), key=scores.get)
    return (
        f'With {K} nearest neighbors, the {TRAINED} classifies {scores[TRAINED]:.1f} % of the test images correctly, the '
        f'better baseline ({better}) {scores[better]:.1f} %.'
    )


def draw_demo(
    cfg: Config,
    datasets: list[Dataset],
    scores: dict[str, float],
    features: dict[str, list[Features]],
    seed: int,
) -> Page:
    """Return the page about a demo run. It is written for readers who do not know the field."""
    train_set, test_set = datasets
    page = Page(
        'What a network learns without labels',
        f'A small network trained on {len(train_set):,} images without labels. {verdict(scores)}',
    )
    page.add(
        'Quality of the features',
        'A test image gets the class that most of the labeled images with the most similar features have (k-NN). This '
        'measures whether images of one class have similar features. Pre-training used no labels.',
        demo_scores(scores).html(),
        f'Accuracy on {len(test_set):,} images that pre-training did not use. Chance is '
        f'{100 / len(test_set.classes):.1f} %.',
    )
    page.add(
        'Views',
        'Each training image (left) is cropped and altered at random, twice. The network learns only that the two copies '
        'belong together, not what they show.',
        macro('pictures.html', 'views', pictured_views(cfg, PAIRS, seed)),
    )
    page.add(
        'Feature map',
        'Every dot is an image, colored by its class. Images with similar features are near each other, so an island of '
        'one color is a class that the features distinguish.',
        [_map(name, features[name][1], test_set.classes, seed) for name in (PIXELS, TRAINED)],
        f'These are t-SNE maps of at most {MAPPED} test images. Distances between islands mean little.',
    )
    return page


def _map(title: str, bank: Features, classes: list[str], seed: int) -> Markup:
    points = tsne(bank.x[:MAPPED], seed)
    labels = bank.y[:MAPPED].numpy()
    series = {}
    for label, name in enumerate(classes):
        series[str(name)] = tuple(points[labels == label].T)
    return embedded(lines(series, title, dots=True, ticks=['']), f'{title}: a map of images')
