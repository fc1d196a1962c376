"""Run the demo: pre-train a small network, compare it with two baselines, and write a page about it."""

import math
import platform
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from mmengine import Config
from mmengine.runner import find_latest_checkpoint
from rich.console import Console
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.analysis.geometry import invariance
from mmairl.analysis.subjects import Images
from mmairl.engine.curves import read_scalars
from mmairl.engine.run import train
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.features import Features, extract, extraction
from mmairl.evaluation.knn import knn_right
from mmairl.evaluation.logreg import QUICK, logistic_regression
from mmairl.evaluation.protocol import Result
from mmairl.evaluation.sets import evaluation_sets
from mmairl.registry import DATASETS, MODELS
from mmairl.report.analysis_pages import add_invariance
from mmairl.report.charts import chart
from mmairl.report.page import Page, macro
from mmairl.report.sections import (
    CURVES,
    add_maps,
    add_neighbors,
    augmented,
    percent,
    picture,
    sample_indices,
)
from mmairl.report.table import counted, print_results, results_table

K = 20
PAIRS = 8  # number of images that the page shows with their views
CHANGED = 256  # number of test images to measure the invariances with
SCORE = f'k-NN, k = {K}'
PIXELS = 'raw pixels, half size'
RANDOM = 'random initialisation'
TRAINED = 'trained student'
BankPair = tuple[Features, ...]  # features of the training and the test images


def run_demo(cfg: Config, seed: int, device: str) -> Path:
    """Pre-train with the config `cfg` and the given seed, compare the student with two baselines, and write the page."""
    console = Console()
    cfg.randomness = {**cfg.get('randomness', {}), 'seed': seed}
    console.print(f'[bold]1/3[/] pre-training, seed {seed}')
    start = time.perf_counter()
    train(cfg)
    minutes = (time.perf_counter() - start) / 60
    checkpoint = find_latest_checkpoint(cfg.work_dir)

    console.print('[bold]2/3[/] measuring the features')
    datasets = [dataset for _, dataset in evaluation_sets(cfg).values()]
    networks = {
        RANDOM: load_backbone(cfg, None, seed=seed),
        TRAINED: load_backbone(cfg, checkpoint, seed=seed),
    }
    results = []
    features = {}
    for name in (PIXELS, *networks):
        start = time.perf_counter()
        backbone = networks.get(name)
        banks = tuple(extract(backbone, dataset, extraction(cfg, device)) for dataset in datasets)
        if backbone is None:
            banks = tuple(Features(halved(bank.x), bank.y) for bank in banks)
        scores = accuracies(banks, device)
        results.append(Result(name, scores, time.perf_counter() - start))
        features[name] = banks
    print_results(results, f'top-1 in percent on {len(datasets[1])} test images')
    console.print(verdict(results))

    console.print('[bold]3/3[/] drawing the page')
    page = draw_demo(cfg, datasets, results, features, seed)
    images = Images(cfg, CHANGED, device=device)
    raw = torch.cat(list(images.raw()))
    kept = {}
    for name, network in networks.items():
        kept[name] = invariance(partial(images.embed, network), raw)
    add_invariance(page, kept)
    page.add(
        'Method',
        f'MoCo v2+ with the config {Path(cfg.filename).name}, seed {seed}: {minutes:.1f} minutes of pre-training on '
        f'{counted(torch.get_num_threads(), "thread")} ({platform.machine()}, torch {torch.__version__}). '
        'Neither the seed nor the checkpoint was selected by its result.',
    )
    return page.write(Path(cfg.work_dir) / 'report.html')


def accuracies(banks: BankPair, device: str) -> dict[str, float]:
    """Return top-1 accuracy in percent of k-NN and of logistic regression."""
    linear = logistic_regression(*banks, strengths=QUICK, device=device, standardise=True)
    right = knn_right(*banks, [K], device=device)[K]
    return {
        SCORE: 100 * int(right.sum()) / len(right),
        'logistic regression': linear.scores['top-1'],
    }


def halved(pixels: Tensor) -> Tensor:
    """Return images at half their side length, because logistic regression on all 6 912 pixel values would take minutes."""
    side = math.isqrt(pixels.shape[1] // 3)
    return F.avg_pool2d(pixels.view(-1, 3, side, side), 2).flatten(1)


def verdict(results: list[Result]) -> str:
    """Return a sentence that compares the trained student with the better of the two baselines."""
    *baselines, student = results
    better = max(baselines, key=lambda result: result.scores[SCORE])
    ratio = student.scores[SCORE] / max(better.scores[SCORE], 1e-9)
    return (
        f'With {K} nearest neighbors, the trained student classifies {student.scores[SCORE]:.1f} % of the test images '
        f'correctly, {ratio:.1f} times the {better.scores[SCORE]:.1f} % of the better baseline ({better.subject}).'
    )


def draw_demo(
    cfg: Config,
    datasets: list[Dataset],
    results: list[Result],
    features: dict[str, BankPair],
    seed: int,
) -> Page:
    """Return the page about a demo run. It is written for readers who do not know the field."""
    train_set, test_set = datasets
    page = Page(
        'What a network learns without labels',
        f'A small network trained on {len(train_set):,} images without labels. {verdict(results)}',
    )
    page.add(
        'Quality of the features',
        'k-NN lets the nearest labeled images vote, and logistic regression separates the classes by linear boundaries. Both '
        'classifiers measure whether images of one class have similar features. Pre-training used no labels.',
        results_table(results),
        'Top-1 accuracy in percent on images that neither pre-training nor the classifiers used.',
    )
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    chosen = sample_indices(dataset, PAIRS, seed)
    views = augmented(dataset, MODELS.build(cfg.model.data_preprocessor), chosen, seed)
    pairs = []
    for index, first, second in zip(chosen, *views[:2]):
        shown = {'image': dataset.raw(index), 'first view': first, 'second view': second}
        pairs.append([picture(image, name) for name, image in shown.items()])
    page.add(
        'Views',
        'Each training image (left) is cropped and altered at random, twice. The network learns only that the two copies '
        'belong together, not what they show.',
        macro('pictures.html', 'grid', pairs),
    )
    baseline = results[0].subject
    student = results[-1].subject
    maps = {name: features[name][1] for name in (baseline, student)}
    add_maps(page, maps, test_set.classes, seed)
    train_features, test_features = features[student]
    add_neighbors(
        page, (train_set.raw, train_features), (test_set.raw, test_features), test_set.classes
    )
    curves = read_scalars(cfg.work_dir)
    charts = []
    for name, title in CURVES.items():
        if name in curves:
            charts.append(chart({'': percent(name, curves[name])}, title, 'step'))
    page.add(
        'Training',
        'The loss falls as the network learns to recognize two copies of one image. Instance accuracy is how often the '
        'network finds the other copy of an image among copies of many images.',
        charts,
        'The teacher is a running average of the student; the closer its momentum to 1, the slower it follows.',
    )
    return page
