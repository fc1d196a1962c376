"""Write the output of `mmairl analyze`: an HTML page, figures as SVG, PDF and PNG, and numbers as CSV."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup
from mmengine.config import Config
from torch import Tensor, nn

from mmairl.analysis.cka import network_cka, stage_cka
from mmairl.analysis.geometry import STRENGTHS, alignment, invariance, spectrum, uniformity
from mmairl.analysis.measures import MEASURES, checkpoint_loss, embed_views, measure_network
from mmairl.analysis.subjects import Images
from mmairl.checkpoints.norms import (
    LARS_GROWTH,
    Norm,
    looks_lars_trained,
    typical_growth,
    weight_norms,
)
from mmairl.checkpoints.read import Backbone
from mmairl.errors import UserError
from mmairl.evaluation.backbone import refresh_statistics
from mmairl.evaluation.features import Features, show_progress
from mmairl.models.backbones import pooled
from mmairl.models.spectrum import rankme, spread
from mmairl.report.figures import chart, heat_map, lines, save_figure
from mmairl.report.page import Page
from mmairl.report.sections import add_maps, add_neighbors
from mmairl.report.table import Table

Subjects = Mapping[str, tuple]  # the arguments of `Images.network` for each network, by name
CHANGED = 256  # number of images to measure the invariances with
SMALLEST_SHARE = 1e-12  # shares of the variance below this value are rounding errors
BETTER = {math.inf: 'higher', -math.inf: 'lower', 0.0: 'lower'}
NUMBERS = ('alignment', 'uniformity', 'RankMe', 'spread')


def norms_page(networks: Mapping[str, Backbone], out: Path) -> Path:
    """Write a page with the weight norms of any number of checkpoints (Huang et al. 2022, Fig. 3a)."""
    norms = {name: weight_norms(backbone.weights, kernel=3) for name, backbone in networks.items()}
    by_layer: dict[str, dict[str, float]] = {}
    for name, rows in norms.items():
        for row in rows:
            by_layer.setdefault(row.name, {})[name] = row.norm
    layers = [[layer, *map(known.get, networks)] for layer, known in by_layer.items()]
    Table(['tensor', *networks], layers).save(out / 'norms')
    verdicts = []
    for name, backbone in networks.items():
        looks = 'yes' if looks_lars_trained(backbone.weights) else 'no'
        verdicts.append([name, typical_growth(backbone.weights), looks])
    trained_by_lars = ', '.join(name for name, _, looks in verdicts if looks == 'yes') or 'none'
    page = Page(
        'Weight norms',
        f'Checkpoints with weight norms that are typical of training by LARS: {trained_by_lars}.',
    )
    page.add(
        'Layer by layer',
        'Without weight decay, norms grow with every step. In Huang et al. 2022, norms after training by LARS are about ten '
        'times as large as after SGD with weight decay, so the usual learning rates for fine-tuning are too low.',
        _saved_chart(out / 'norms', **_norm_curves(norms), x='convolution'),
    )
    _add_table(
        page,
        'LARS-trained weights',
        f'Growth is the norm of a typical 3x3 convolution divided by its norm at initialization. Growth above {LARS_GROWTH} is '
        'typical of LARS. Apply NormRescale to such weights before fine-tuning.',
        Table(['network', 'growth', 'looks LARS-trained'], verdicts, digits=2),
    )
    return page.write(out / 'norms.html')


def _norm_curves(norms: Mapping[str, Sequence[Norm]]) -> dict[str, Any]:
    """Return the arguments of `lines` to draw the norms of convolutions by depth, with a line per network."""
    series = {}
    positive = []
    for name, rows in norms.items():
        values = [row.norm for row in rows]
        series[name] = (range(len(values)), values)
        positive += [value for value in values if value > 0]
    deepest = max(norms.values(), key=len)
    spans_decades = bool(positive) and max(positive) > 8 * min(positive)
    return dict(
        series=series,
        title='norms of the 3x3 convolutions',
        log='y' if spans_decades else '',
        ticks=[row.name.removesuffix('.weight').replace('layer', 'l') for row in deepest],
    )


def _saved_chart(stem: Path, series: Mapping[str, Any], title: str, **axes: Any) -> Markup:
    """Save curves as files, and return the same curves as a chart for the page."""
    save_figure(lines(series, title, **axes), stem)
    return chart(series, title, **axes)


def _add_table(page: Page, heading: str, text: str, table: Table) -> None:
    """Add a table to the page, and print it."""
    page.add(heading, text, table.html())
    print(table.text(heading))


def cka_page(subjects: Subjects, images: Images, stage: str, recalibrate: bool, out: Path) -> Path:
    """Write a page with the linear CKA of two or more networks.

    Two networks are compared for each pair of stages. More networks are compared in pairs at the given stage. Equal stages of
    the first network and each other network are compared in a line chart (Huang et al. 2022, Fig. 3b).
    """
    networks = _networks(subjects, images, recalibrate)
    names = list(networks)
    first, *others = names
    page = Page(
        'CKA',
        f'Similarity between the features that networks compute for {len(images)} images (linear CKA). It is 1 for equal '
        'features and 0 for unrelated features.',
    )
    lines_of = {}
    for name in others:
        batches = _watched(images, f'CKA with {name}')
        values, rows, columns = stage_cka(networks[first], networks[name], batches)
        lines_of[f'{first} and {name}'] = values.diagonal().tolist()
    stages = rows
    title = f'{first} (rows) and {names[-1]} (columns)'
    if len(others) > 1:
        values = network_cka(list(networks.values()), _watched(images, 'CKA'), stage)
        rows = columns = names
        title = f'all networks at {stage}'
    table = Table(
        ['', *columns], [[row, *line] for row, line in zip(rows, values.tolist())], 2, heat=True
    )
    table.save(out / 'cka')
    save_figure(heat_map(values, rows, columns, title), out / 'cka')
    _add_table(page, f'CKA: {title}', '', table)
    series = {name: (range(len(line)), line) for name, line in lines_of.items()}
    drawn = _saved_chart(out / 'cka_stages', series, 'CKA of equal stages', x='stage', ticks=stages)
    page.add('Equal stages', '', drawn)
    return page.write(out / 'cka.html')


def geometry_page(
    subjects: Subjects, images: Images, recalibrate: bool, out: Path, seed: int
) -> Path:
    """Write a page about the geometry of the features of any number of networks.

    The page shows alignment, uniformity, rank, spectrum and invariances. If each image has one class, the page also shows maps
    and nearest neighbors of images.
    """
    page = Page(
        'Geometry',
        f'This page shows how each network arranges the features of {len(images)} images.',
    )
    features = {}
    numbers = []
    similarity = {}
    for name, network in _networks(subjects, images, recalibrate).items():
        features[name] = _features(network, _watched(images, name))
        numbers.append([name, *_four_numbers(network, images, features[name], seed)])
        similarity[name] = invariance(partial(images.embed, network), images.first(CHANGED))
    table = Table(['network', *NUMBERS], numbers, digits=3)
    table.save(out / 'geometry')
    _add_table(
        page,
        'Geometry in four numbers',
        'Alignment: the mean squared distance between two views of an image; lower is better. Uniformity: how evenly images '
        'cover the sphere; lower is more even. RankMe: the number of dimensions in use. Spread: 1 if images are spread '
        'evenly over the sphere, 0 after a collapse.',
        table,
    )
    _add_spectrum(page, features, out)
    _add_invariance(page, similarity, out)
    if images.labels.ndim == 1:
        labeled = {name: Features(x, images.labels) for name, x in features.items()}
        add_maps(page, labeled, images.classes, seed)
        for name, bank in labeled.items():
            same = (images.picture, bank)
            add_neighbors(page, same, same, images.classes, f'Nearest neighbors by {name}')
    return page.write(out / 'geometry.html')


@torch.inference_mode()
def _features(network: nn.Module, batches: Iterable[Tensor]) -> Tensor:
    return torch.cat([pooled(network(batch)).float().cpu() for batch in batches])


@torch.inference_mode()
def _four_numbers(network: nn.Module, images: Images, x: Tensor, seed: int) -> list[float]:
    """Return alignment, uniformity, RankMe and spread. Alignment is NaN if the config does not define training views."""
    apart = math.nan
    if images.cfg.get('train_dataloader'):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            apart = alignment(*embed_views(network, images))
    return [apart, uniformity(x), rankme(x), spread(x)]


def _add_spectrum(page: Page, features: Mapping[str, Tensor], out: Path) -> None:
    spectra = {name: spectrum(x).tolist() for name, x in features.items()}
    series = {}
    for name, values in spectra.items():
        above_rounding = [value for value in values if value > SMALLEST_SHARE]
        series[name] = (range(1, len(above_rounding) + 1), above_rounding)
    ranked = zip_longest(*spectra.values())
    rows = [[rank, *shares] for rank, shares in enumerate(ranked, start=1)]
    Table(['rank', *spectra], rows).save(out / 'spectrum')
    title = 'shares of the variance'
    drawn = _saved_chart(out / 'spectrum', series, title, x='rank of the eigenvalue', log='xy')
    page.add(
        'Spectrum', 'A steep decline means that few directions carry most of the variance.', drawn
    )


def _add_invariance(
    page: Page, similarity: Mapping[str, Mapping[str, list[float]]], out: Path
) -> None:
    """Add a chart for each kind of change to the images, such as a smaller crop. A chart has a line per network."""
    charts = []
    rows = []
    for change in next(iter(similarity.values())):
        series = {name: (STRENGTHS, changes[change]) for name, changes in similarity.items()}
        charts.append(chart(series, change, 'strength', normal=(0.0, 1.0)))
        rows += [[name, change, *values] for name, (_, values) in series.items()]
    strengths = [f'strength {strength}' for strength in STRENGTHS]
    Table(['network', 'change', *strengths], rows).save(out / 'invariance')
    page.add(
        'Invariances',
        'Similarity of the features of an image before and after one change of increasing strength: it is 1 if the features '
        'do not change, and 0 if the changed image is no more similar to the original than other images are.',
        charts,
    )


def measures_page(
    subjects: Subjects,
    cfg: Config,
    count: int,
    loading: Mapping[str, Any],
    recalibrate: bool,
    out: Path,
) -> Path:
    """Write a page with every label-free measure of any number of networks."""
    if 'train_dataloader' not in cfg:
        raise UserError(
            f"measures: '{cfg.filename}' has no train_dataloader, which defines the views that LiDAR and alignment require; "
            'give the config of a pre-training',
            code='no-training-views',
        )
    images = Images(cfg, count, part='train', **loading)
    measured = {}
    for name, network in _networks(subjects, images, recalibrate).items():
        loss = checkpoint_loss(Path(subjects[name][0]))
        measured[name] = measure_network(network, cfg, loss, count, **loading)
    rows = []
    for name, measure in MEASURES.items():
        if all(name in known for known in measured.values()):
            better = BETTER.get(measure.best, f'near {measure.best:g}')
            rows.append([name, better, *(known[name] for known in measured.values())])
    table = Table(['measure', 'better', *measured], rows, digits=4)
    table.save(out / 'measures')
    page = Page('Measures without labels', f'{len(images)} training images. Labels were not used.')
    _add_table(
        page,
        'Measures',
        'Compare networks only on equal numbers of images. The documentation of the measures states which of them predict '
        'accuracy.',
        table,
    )
    return page.write(out / 'measures.html')


def _networks(subjects: Subjects, images: Images, recalibrate: bool) -> dict[str, nn.Module]:
    networks = {name: images.network(*subject) for name, subject in subjects.items()}
    if recalibrate:
        for name, network in networks.items():
            refresh_statistics(network, _watched(images, f'BN statistics of {name}'))
    return networks


def _watched(images: Images, label: str) -> Iterable[Tensor]:
    """Return the batches of images, and show a progress bar in a terminal while they are read."""
    return show_progress(images, label, math.ceil(len(images) / images.batch_size))
