"""Write the output of `mmairl analyze`: an HTML page, figures as PNG and SVG, and numbers as CSV."""

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

from mmairl.analysis.cka import full_cka, network_cka, stage_cka
from mmairl.analysis.geometry import STRENGTHS, alignment, invariance, spectrum, uniformity
from mmairl.analysis.measures import MEASURES, checkpoint_loss, embed_views, measure_network
from mmairl.analysis.subjects import Images
from mmairl.checkpoints.norms import LARS_GROWTH, looks_lars_trained, typical_growth, weight_norms
from mmairl.checkpoints.read import Backbone
from mmairl.errors import UserError
from mmairl.evaluation.backbone import refresh_statistics
from mmairl.evaluation.features import Features, show_progress
from mmairl.models.backbones import pooled
from mmairl.models.spectrum import rankme, spread
from mmairl.report.charts import chart
from mmairl.report.figures import heat_map, lines, norm_curves, save_figure
from mmairl.report.page import Page
from mmairl.report.sections import add_maps, add_neighbors
from mmairl.report.table import ABSENT, Row, html_table, print_table, save_table

Subjects = Mapping[str, tuple]  # the arguments of `Images.network` for each network, by name
Numbers = Mapping[str, Sequence[float]]
# Published values, by network and by quantity.
Published = Mapping[str, Mapping[str, float]]
CHANGED = 256  # number of images to measure the invariances with
SMALLEST_SHARE = 1e-12  # shares of the variance below this value are rounding errors
BETTER = {math.inf: 'higher', -math.inf: 'lower', 0.0: 'lower'}
NUMBERS = ('alignment', 'uniformity', 'RankMe', 'spread')


def norms_page(networks: Mapping[str, Backbone], out: Path) -> Path:
    """Write a page with the weight norms of any number of checkpoints (Huang et al. 2022, Fig. 3a)."""
    norms = {}
    layers: dict[str, float] = {}
    by_name = []
    for name, backbone in networks.items():
        norms[name] = weight_norms(backbone.weights, kernel=3)
        by_name.append({row.name: row.norm for row in norms[name]})
        layers |= by_name[-1]
    table = [[layer, *(known.get(layer) for known in by_name)] for layer in layers]
    save_table(['tensor', *norms], table, out / 'norms')
    looks = {name: looks_lars_trained(backbone.weights) for name, backbone in networks.items()}
    trained_by_lars = ', '.join(name for name, is_large in looks.items() if is_large)
    page = Page(
        'Weight norms',
        f'Checkpoints with weight norms that are typical of training by LARS: {trained_by_lars or "none"}.',
    )
    page.add(
        'Layer by layer',
        'Without weight decay, norms grow with every step. In Huang et al. 2022, norms after training by LARS are about ten '
        'times as large as after SGD with weight decay, so the usual learning rates for fine-tuning are too low.',
        _curves(out / 'norms', **norm_curves(norms), x='convolution'),
    )
    verdicts = []
    for name, backbone in networks.items():
        growth = typical_growth(backbone.weights)
        cell = ABSENT if growth is None else f'{growth:.2f}'
        verdicts.append((name, [cell, 'yes' if looks[name] else 'no']))
    _add_table(
        page,
        'LARS-trained weights',
        f'Growth is the norm of a typical 3x3 convolution divided by its norm at initialization. Growth above {LARS_GROWTH} is '
        'typical of LARS. Apply NormRescale to such weights before fine-tuning.',
        ['growth', 'looks LARS-trained'],
        verdicts,
    )
    return page.write(out / 'norms.html')


def _curves(stem: Path, series: Mapping[str, Any], title: str, **axes: Any) -> Markup:
    """Save curves as PNG and SVG, and return the same curves as a chart for the page."""
    save_figure(lines(series, title, **axes), stem)
    return chart(series, title, wide=True, **axes)


def _add_table(
    page: Page,
    heading: str,
    text: str,
    columns: Sequence[str],
    rows: Sequence[Row],
    heat: bool = False,
    title: str = '',
) -> None:
    """Add a table to the page, and print the same table below a title."""
    page.add(heading, text, html_table(columns, rows, heat=heat))
    print_table(columns, rows, title)


def cka_page(
    subjects: Subjects, images: Images, stage: str, full: bool, recalibrate: bool, out: Path
) -> Path:
    """Write a page with the CKA of networks.

    Two networks are compared for each pair of stages. More than two networks are compared in pairs, only at the given stage.
    """
    networks = _networks(subjects, images, recalibrate)
    names = list(networks)
    page = _cka_page(images)
    if len(networks) == 2:
        values, rows, columns = stage_cka(*networks.values(), _watched(images, 'CKA'))
        title = 'linear CKA'
        axes = names
        text = f'Rows: the stages of {names[0]}. Columns: the stages of {names[1]}. The diagonal compares equal stages.'
    else:
        values = network_cka(list(networks.values()), _watched(images, 'CKA'), stage)
        rows = columns = names
        title = f'linear CKA at {stage}'
        axes = ['', '']
        text = f'Each cell compares two networks at the stage {stage}.'
    by_row = dict(zip(rows, values.tolist()))
    _save_rows(['', *columns], by_row, out / 'cka')
    save_figure(heat_map(values, rows, columns, title, axes), out / 'cka')
    heading = title.replace('linear', 'Linear')
    _add_table(page, heading, text, columns, _cells(by_row, 2), heat=True)
    if len(networks) == 2:
        diagonal = {' and '.join(names): values.diagonal().tolist()}
        _add_equal_stages(page, diagonal, rows, out)
    if len(networks) == 2 and full:
        number = full_cka(*networks.values(), _watched(images, 'CKA over all images'))
        text = f'CKA by the biased estimator, which papers usually report: {number:.4f}.'
        page.add('Pooled features, all images at once', text)
        print(f'pooled features, all images at once, biased: {number:.4f}')
    return page.write(out / 'cka.html')


def cka_lines_page(subjects: Subjects, images: Images, recalibrate: bool, out: Path) -> Path:
    """Write a page with the CKA between the first network and each other network at equal stages, as a line per pair."""
    (first, network), *others = _networks(subjects, images, recalibrate).items()
    by_pair = {}
    for name, other in others:
        values, stages, _ = stage_cka(network, other, _watched(images, 'CKA'))
        by_pair[f'{first} and {name}'] = values.diagonal().tolist()
    _save_rows(['', *stages], by_pair, out / 'cka')
    page = _cka_page(images)
    _add_equal_stages(page, by_pair, stages, out)
    return page.write(out / 'cka.html')


def _cka_page(images: Images) -> Page:
    lead = (
        f'Similarity between the features that two networks compute for {len(images)} images (linear CKA). It is 1 for equal '
        'features and 0 for unrelated features.'
    )
    return Page('CKA', lead)


def _add_equal_stages(page: Page, by_pair: Numbers, stages: Sequence[str], out: Path) -> None:
    series = {name: (range(len(line)), line) for name, line in by_pair.items()}
    drawn = _curves(out / 'cka_stages', series, 'CKA of equal stages', x='stage', ticks=stages)
    page.add('Equal stages', 'These numbers are drawn as in Fig. 3b of Huang et al. 2022.', drawn)
    missing = [ABSENT] * len(stages)
    rows = [(name, [*cells, *missing][: len(stages)]) for name, cells in _cells(by_pair, 4)]
    print_table(stages, rows)


def _save_rows(columns: Sequence[str], rows: Numbers, stem: Path) -> None:
    save_table(columns, [[name, *row] for name, row in rows.items()], stem)


def _cells(rows: Numbers, digits: int) -> list[Row]:
    cells = []
    for name, row in rows.items():
        texts = [f'{value:.{digits}f}' for value in row]
        cells.append((name, [ABSENT if text == 'nan' else text for text in texts]))
    return cells


def geometry_page(
    subjects: Subjects,
    images: Images,
    recalibrate: bool,
    out: Path,
    seed: int,
    published: Published | None = None,
) -> Path:
    """Write a page about the geometry of the features of any number of networks.

    The page shows alignment, uniformity, rank, spectrum and invariances. If each image has one class, the page also shows maps
    and nearest neighbors of images. If `published` is given, the published values of a network follow its measured values.
    """
    page = Page(
        'Geometry',
        f'This page shows how each network arranges the features of {len(images)} images.',
    )
    features = {}
    numbers = {}
    kept = {}
    few = images.first(CHANGED)
    for name, network in _networks(subjects, images, recalibrate).items():
        features[name] = _features(network, _watched(images, name))
        numbers[name] = _four_numbers(network, images, features[name], seed)
        kept[name] = invariance(partial(images.embed, network), few)
    sized = {}
    for name, x in features.items():
        images_of_network, dimensions = x.shape
        sized[name] = [*numbers[name], dimensions, images_of_network]
    _save_rows(['network', *NUMBERS, 'dimensions', 'images'], sized, out / 'geometry')
    _add_table(
        page,
        'Geometry in four numbers',
        'Alignment: the mean squared distance between two views of an image; lower is better. Uniformity: how evenly images '
        'cover the sphere; lower is more even. RankMe: the number of dimensions in use. Spread: 1 if images are spread '
        'evenly over the sphere, 0 after a collapse.',
        NUMBERS,
        with_published(NUMBERS, numbers, published or {}),
    )
    _add_spectrum(page, features, out)
    add_invariance(page, kept)
    rows = []
    for name, changes in kept.items():
        rows += [[name, change, *values] for change, values in changes.items()]
    strengths = [f'strength {strength}' for strength in STRENGTHS]
    save_table(['network', 'change', *strengths], rows, out / 'invariance')
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


def with_published(columns: Sequence[str], measured: Numbers, published: Published) -> list[Row]:
    """Return a row with the measured values of each network, followed by a row with its published values, if it has any.

    Example:
        >>> with_published(['alignment', 'spread'], {'BYOL': [0.5, 0.91]}, {'BYOL': {'top1': 71.9, 'alignment': 0.25}})
        [('BYOL', ['0.500', '0.910']), ('BYOL, as published', ['0.25', '–'])]
    """
    rows = []
    for name, cells in _cells(measured, 3):
        rows.append((name, cells))
        printed = published.get(name, {})
        if printed.keys() & {*columns}:
            numbers = [str(printed.get(column, ABSENT)) for column in columns]
            rows.append((f'{name}, as published', numbers))
    return rows


def _add_spectrum(page: Page, features: Mapping[str, Tensor], out: Path) -> None:
    spectra = {name: spectrum(x).tolist() for name, x in features.items()}
    series = {}
    for name, values in spectra.items():
        above_rounding = [value for value in values if value > SMALLEST_SHARE]
        series[name] = (range(1, len(above_rounding) + 1), above_rounding)
    ranked = zip_longest(*spectra.values(), fillvalue=0.0)
    rows = [[rank, *shares] for rank, shares in enumerate(ranked, start=1)]
    save_table(['rank', *spectra], rows, out / 'spectrum')
    title = 'eigenvalues of the covariance, as shares of the variance'
    drawn = _curves(out / 'spectrum', series, title, x='rank', log='xy')
    page.add(
        'Spectrum', 'A steep decline means that few directions carry most of the variance.', drawn
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
    networks = list(measured)
    names = [name for name in MEASURES if all(name in known for known in measured.values())]
    by_network = {}
    for network, known in measured.items():
        by_network[network] = [known[name] for name in names]
    _save_rows(['network', *names], by_network, out / 'measures')
    rows = []
    charts = []
    for name, *values in zip(names, *by_network.values()):
        measure = MEASURES[name]
        better = BETTER.get(measure.best, f'near {measure.best:g}')
        cells = [ABSENT if math.isnan(value) else f'{value:.4g}' for value in values]
        rows.append((name, [better, measure.images, *cells]))
        if any(map(math.isfinite, values)):
            series = {name: (range(len(values)), values)}
            charts.append(chart(series, name, 'network', ticks=networks, dots=True))
    columns = ['better', 'images', *networks]
    title = f'{len(images)} training images, labels not used'
    page = Page(
        'Measures without labels',
        f'Measures of the features of {len(images)} training images. Labels were not used.',
    )
    _add_table(
        page,
        'All measures',
        'A number in the column "images" is a sufficient number of images: more images change the measure by less than 5 %. '
        'A measure with "equal numbers" grows with the number of images, so compare networks only on equal numbers of images. '
        'docs/reference/measures.md states which measures predict accuracy.',
        columns,
        rows,
        title=title,
    )
    page.add('Charts', '', charts)
    return page.write(out / 'measures.html')


def add_invariance(page: Page, kept: Mapping[str, Mapping[str, list[float]]]) -> None:
    """Add a chart for each kind of change to the images, such as a smaller crop. A chart has a line per network."""
    charts = []
    for change in next(iter(kept.values())):
        series = {name: (STRENGTHS, changes[change]) for name, changes in kept.items()}
        charts.append(chart(series, change, 'strength', normal=(0.0, 1.0)))
    page.add(
        'Invariances',
        'Similarity of the features of an image before and after one change of increasing strength: it is 1 if the features '
        'do not change, and 0 if the changed image is no more similar to the original than other images are.',
        charts,
    )


def _networks(subjects: Subjects, images: Images, recalibrate: bool) -> dict[str, nn.Module]:
    networks = {name: images.network(*subject) for name, subject in subjects.items()}
    if recalibrate:
        for name, network in networks.items():
            refresh_statistics(network, _watched(images, f'BN statistics of {name}'))
    return networks


def _watched(images: Images, label: str) -> Iterable[Tensor]:
    """Return the batches of images, and show a progress bar in a terminal while they are read."""
    return show_progress(images, label, math.ceil(len(images) / images.batch_size))
