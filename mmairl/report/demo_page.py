"""The demo: pre-train, compare with two baselines, and write a page."""

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
from mmairl.report.page import Page, fill
from mmairl.report.sections import (
    CURVES,
    add_maps,
    add_neighbours,
    augmented,
    percent,
    picture,
    some,
)
from mmairl.report.table import print_results, results_table

K = 20
PAIRS = 8  # images that are shown with their views
CHANGED = 256  # test images for each change of the invariances
SCORE = f'k-NN, k = {K}'


def run_demo(cfg: Config, seed: int, device: str) -> Path:
    """Pre-train `cfg` from `seed`, measure the student and two baselines, and return the path of the page."""
    console = Console()
    cfg.randomness = {**cfg.get('randomness', {}), 'seed': seed}
    console.print(f'[bold]1/3[/] pre-training, seed {seed}')
    start = time.perf_counter()
    train(cfg)
    minutes, checkpoint = (time.perf_counter() - start) / 60, find_latest_checkpoint(cfg.work_dir)

    console.print('[bold]2/3[/] measuring the features')
    data = tuple(dataset for _, dataset in evaluation_sets(cfg).values())
    results, features = measure_subjects(cfg, data, checkpoint, seed, device)
    print_results(results, f'top-1 in percent on {len(data[1])} test images')
    console.print(verdict(results))

    console.print('[bold]3/3[/] drawing the page')
    page = draw(cfg, data, results, features, seed)
    images = Images(cfg, CHANGED, device=device)
    raw, networks = (
        torch.cat(list(images.raw())),
        {'random initialisation': None, 'trained student': checkpoint},
    )
    embeddings = {
        name: partial(images.embed, load_backbone(cfg, path, seed=seed))
        for name, path in networks.items()
    }
    add_invariance(page, {name: invariance(embed, raw) for name, embed in embeddings.items()})
    page.add(
        'Method',
        f'MoCo v2+ by {Path(cfg.filename).name}, seed {seed}: {minutes:.1f} minutes of pre-training on '
        f'{torch.get_num_threads()} threads ({platform.machine()}, torch {torch.__version__}). '
        'Neither the seed nor the checkpoint was selected by its result.',
    )
    return page.write(Path(cfg.work_dir) / 'report.html')


def measure_subjects(
    cfg: Config, data: tuple[Dataset, Dataset], checkpoint: str, seed: int, device: str
) -> tuple[list[Result], dict[str, tuple[Features, ...]]]:
    """Return k-NN and linear scores of raw pixels, the untrained network and the student, and their features."""
    results, kept = [], {}
    for subject in ('pixels', 'random', checkpoint):
        start = time.perf_counter()
        backbone = (
            None
            if subject == 'pixels'
            else load_backbone(cfg, None if subject == 'random' else subject, seed=seed)
        )
        features = tuple(extract(backbone, dataset, extraction(cfg, device)) for dataset in data)
        if backbone is None:
            features = tuple(Features(halved(part.x), part.y) for part in features)
        linear = logistic_regression(*features, strengths=QUICK, device=device, standardise=True)
        right = knn_right(*features, [K], device=device)[K]
        scores = {
            SCORE: 100 * int(right.sum()) / len(right),
            'logistic regression': linear.scores['top-1'],
        }
        name = {'pixels': 'raw pixels, half size', 'random': 'random initialisation'}.get(
            subject, 'trained student'
        )
        results.append(Result(name, scores, time.perf_counter() - start))
        kept[name] = features
    return results, kept


def halved(pixels: Tensor) -> Tensor:
    """Return images at half their size; logistic regression on all 6 912 pixels would take minutes."""
    side = math.isqrt(pixels.shape[1] // 3)
    return F.avg_pool2d(pixels.view(-1, 3, side, side), 2).flatten(1)


def verdict(results: list[Result]) -> str:
    """Return a sentence that compares the student with the better baseline."""
    *baselines, student = results
    better = max(baselines, key=lambda result: result.scores[SCORE])
    ratio = student.scores[SCORE] / max(better.scores[SCORE], 1e-9)
    return (
        f'With {K} nearest neighbors, the trained student classifies {student.scores[SCORE]:.1f} % of the test images '
        f'correctly, {ratio:.1f} times the {better.scores[SCORE]:.1f} % of the better baseline ({better.subject}).'
    )


def draw(
    cfg: Config,
    data: tuple[Dataset, Dataset],
    results: list[Result],
    features: dict[str, tuple[Features, ...]],
    seed: int,
) -> Page:
    """Return the page of a demo run, for readers who do not know the field."""
    train_set, test_set = data
    lead = (
        f'A small network trained on {len(train_set):,} images without labels. {verdict(results)}'
    )
    page = Page('What a network learns without labels', lead)
    page.add(
        'Quality of the features',
        'Both tests measure whether images of one class have similar features: k-NN lets the nearest labeled images vote, '
        'logistic regression separates the classes by linear boundaries. Pre-training used no label.',
        results_table(results),
        'Top-1 accuracy in percent on images that neither pre-training nor the classifiers used.',
    )
    trained = DATASETS.build(cfg.train_dataloader.dataset)
    chosen = some(trained, PAIRS, seed)
    first, second, *_ = augmented(trained, MODELS.build(cfg.model.data_preprocessor), chosen, seed)
    pairs = [
        (picture(trained.raw(i), 'image'), picture(one, 'first view'), picture(two, 'second view'))
        for i, one, two in zip(chosen, first, second)
    ]
    page.add(
        'Views',
        'Each training image (left) is cropped and altered at random, twice. The network learns only that the two copies '
        'belong together, not what they show.',
        fill('pictures.html', pairs=pairs),
    )
    maps = {result.subject: features[result.subject][1] for result in (results[0], results[-1])}
    add_maps(page, maps, test_set.classes, seed)
    train_features, test_features = features[results[-1].subject]
    add_neighbours(
        page, (train_set.raw, train_features), (test_set.raw, test_features), test_set.classes
    )
    curves = read_scalars(cfg.work_dir)
    shown = {name: title for name, title in CURVES.items() if name in curves}
    page.add(
        'Training',
        'The loss falls as the network learns to recognize two copies of one image. Instance accuracy: how often it picks '
        'the right copy among all others.',
        [chart({'': percent(name, curves[name])}, title, 'step') for name, title in shown.items()],
        'The teacher is a running average of the student; the closer its momentum to 1, the slower it follows.',
    )
    return page
