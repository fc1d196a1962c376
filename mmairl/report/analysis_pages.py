"""The output of `mmairl analyze`: a page, pictures as PNG and SVG, and numbers as CSV."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.config import Config
from torch import Tensor, nn

from mmairl.analysis.cka import full_cka, network_cka, stage_cka
from mmairl.analysis.geometry import STRENGTHS, alignment, invariance, spectrum, uniformity
from mmairl.analysis.measures import MEASURES, embed_views, measure_network, training_loss
from mmairl.analysis.subjects import Images
from mmairl.checkpoints.load import load_checkpoint
from mmairl.checkpoints.norms import LARS_GROWTH, looks_lars_trained, typical_growth, weight_norms
from mmairl.checkpoints.read import Backbone
from mmairl.errors import UserError
from mmairl.evaluation.backbone import refresh_statistics
from mmairl.evaluation.features import Features, show_progress
from mmairl.models.spectrum import rankme, spread
from mmairl.report.charts import chart
from mmairl.report.figures import heat_map, lines, norm_curves, norm_lines, save_figure
from mmairl.report.page import Page
from mmairl.report.sections import add_maps, add_neighbours
from mmairl.report.table import ABSENT, html_table, print_table, save_table

Subjects = Mapping[str, tuple[str, str]]  # name to (checkpoint, part)
Published = Mapping[str, Mapping[str, float]]  # by network and number
CHANGED = 256  # images for each change of the invariances
SMALLEST_SHARE = 1e-12  # eigenvalues below this are rounding
BETTER = {math.inf: 'higher', -math.inf: 'lower', 0.0: 'lower'}
NUMBERS = ('alignment', 'uniformity', 'RankMe', 'spread')


def norms_page(networks: Mapping[str, Backbone], out: Path) -> Path:
    """Write the weight norms of any number of checkpoints (Fig. 3a)."""
    norms = {name: weight_norms(backbone.weights, kernel=3) for name, backbone in networks.items()}
    by_name = {name: {row.name: row.norm for row in rows} for name, rows in norms.items()}
    layers = dict.fromkeys(row.name for rows in norms.values() for row in rows)
    table = [[layer, *(known.get(layer) for known in by_name.values())] for layer in layers]
    save_table(['tensor', *norms], table, out / 'norms')
    title = 'norms of the 3x3 convolutions'
    save_figure(norm_lines(norms, title), out / 'norms')
    page = Page('Weight norms', 'The norm of the weights of each convolution, by depth.')
    page.add(
        'Layer by layer',
        'Without weight decay, norms grow with every step. LARS without L2 leaves them about ten times as large as SGD '
        'with L2, which makes the usual fine-tuning rates too low.',
        chart(**norm_curves(norms), title=title, x='convolution', wide=True),
    )
    columns = ['growth', 'looks LARS-trained']
    verdicts = []
    for name, backbone in networks.items():
        growth = typical_growth(backbone.weights)
        looks = 'yes' if looks_lars_trained(backbone.weights) else 'no'
        verdicts.append((name, [ABSENT if growth is None else f'{growth:.2f}', looks]))
    page.add(
        'LARS-trained weights',
        f'Growth: the norm of the typical 3x3 convolution over its norm at initialization. Above {LARS_GROWTH}, the '
        'weights look as if trained by LARS without L2 on batch norm; apply NormRescale before fine-tuning.',
        html_table(columns, verdicts),
    )
    print_table(columns, verdicts)
    return page.write(out / 'norms.html')


def cka_page(
    subjects: Subjects, images: Images, stage: str, full: bool, recalibrate: bool, out: Path
) -> Path:
    """Write the CKA of two networks stage by stage, or of more networks at one stage."""
    networks = _networks(subjects, images, recalibrate)
    names = list(networks)
    page = Page('CKA', _cka_lead(images))
    if len(networks) == 2:
        values, rows, columns = stage_cka(*networks.values(), _watched(images, 'CKA'))
        title = 'linear CKA'
        axes = names
        page_text = f'Rows: stages of {names[0]}. Columns: stages of {names[1]}. Equal stages are on the diagonal.'
    else:
        values = network_cka(list(networks.values()), _watched(images, 'CKA'), stage)
        rows = columns = names
        title = f'linear CKA at {stage}'
        axes = ['', '']
        page_text = f'All pairs of networks, at {stage}.'
    table = list(zip(rows, values.tolist()))
    save_table(['', *columns], [[name, *line] for name, line in table], out / 'cka')
    save_figure(heat_map(values, rows, columns, title, axes), out / 'cka')
    page.add(
        title.capitalize() if title.islower() else title,
        page_text,
        html_table(columns, _formatted(table, 2), heat=True),
    )
    if len(networks) != 2:
        print_table(names, _formatted(table, 3))
        return page.write(out / 'cka.html')
    _add_equal_stages(page, {' and '.join(names): values.diagonal().tolist()}, rows, out)
    if full:
        number = full_cka(*networks.values(), _watched(images, 'CKA over all images'))
        text = f'The biased estimate, as papers report it: {number:.4f}.'
        page.add('Pooled features, all images at once', text)
        print(f'pooled features, all images at once, biased: {number:.4f}')
    return page.write(out / 'cka.html')


def cka_lines_page(subjects: Subjects, images: Images, recalibrate: bool, out: Path) -> Path:
    """Write the CKA of the first network with each other one at equal stages, a line each (Fig. 3b)."""
    (first, network), *others = _networks(subjects, images, recalibrate).items()
    by_pair = {}
    for name, other in others:
        values, stages, _ = stage_cka(network, other, _watched(images, 'CKA'))
        by_pair[f'{first} and {name}'] = values.diagonal().tolist()
    save_table(['', *stages], [[name, *line] for name, line in by_pair.items()], out / 'cka')
    page = Page('CKA', _cka_lead(images))
    _add_equal_stages(page, by_pair, stages, out)
    return page.write(out / 'cka.html')


def _cka_lead(images: Images) -> str:
    return f'Similarity of the features of {len(images)} images: 1 for equal features, 0 for unrelated ones.'


def _formatted(
    table: Iterable[tuple[str, Sequence[float]]], digits: int
) -> list[tuple[str, list[str]]]:
    return [(name, [f'{value:.{digits}f}' for value in line]) for name, line in table]


def _add_equal_stages(
    page: Page, by_pair: Mapping[str, list[float]], stages: Sequence[str], out: Path
) -> None:
    series = {name: (range(len(line)), line) for name, line in by_pair.items()}
    save_figure(lines(series, 'equal stages', y='CKA', ticks=stages), out / 'cka_stages')
    drawn = chart(series, 'CKA', 'stage', ticks=stages, wide=True)
    page.add('Equal stages', 'As in Fig. 3b of the paper.', drawn)
    print_table(stages, _formatted(by_pair.items(), 4))


def geometry_page(
    subjects: Subjects,
    images: Images,
    recalibrate: bool,
    out: Path,
    seed: int,
    published: Published | None = None,
) -> Path:
    """Write alignment, uniformity, rank, spectrum, invariances, maps and neighbors of any number of networks."""
    networks = _networks(subjects, images, recalibrate)
    page = Page('Geometry', f'How each network distributes {len(images)} images.')
    features = {}
    numbers = {}
    kept = {}
    few = images.first(CHANGED)
    for name, network in networks.items():
        embed = partial(images.embed, network)
        batches = _watched(images.raw(), name, images)
        features[name] = torch.cat([embed(batch).cpu() for batch in batches])
        numbers[name] = _four_numbers(network, images, features[name], seed)
        kept[name] = invariance(embed, few)
    _add_geometry(page, features, numbers, published or {}, out)
    add_invariance(page, kept)
    rows = []
    for name, changes in kept.items():
        rows += [[name, change, *values] for change, values in changes.items()]
    strengths = [f'strength {strength}' for strength in STRENGTHS]
    save_table(['network', 'change', *strengths], rows, out / 'invariance')
    labelled = {name: Features(x, images.labels) for name, x in features.items()}
    add_maps(page, labelled, images.classes, seed)
    for name, bank in labelled.items():
        same = (images.picture, bank)
        add_neighbours(page, same, same, images.classes, f'Nearest neighbors by {name}')
    return page.write(out / 'geometry.html')


@torch.inference_mode()
def _four_numbers(network: nn.Module, images: Images, x: Tensor, seed: int) -> list[float]:
    """Return alignment, uniformity, RankMe and spread; alignment is NaN if the config has no training views."""
    apart = math.nan
    if images.cfg.get('train_dataloader'):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            apart = alignment(*embed_views(network, images))
    return [apart, uniformity(x), rankme(x), spread(x)]


def with_published(
    columns: Sequence[str], measured: Mapping[str, Sequence[float]], published: Published
) -> list[tuple[str, list[str]]]:
    """Return the measured numbers of each network, each followed by its published ones.

    Example:
        >>> with_published(['alignment', 'spread'], {'BYOL': [0.5, 0.91]}, {'BYOL': {'top1': 71.9, 'alignment': 0.25}})
        [('BYOL', ['0.500', '0.910']), ('BYOL, as published', ['0.25', '–'])]
    """
    rows = []
    for name, numbers in measured.items():
        rows.append((name, [ABSENT if math.isnan(value) else f'{value:.3f}' for value in numbers]))
        printed = published.get(name, {})
        if printed.keys() & {*columns}:
            cells = [str(printed.get(column, ABSENT)) for column in columns]
            rows.append((f'{name}, as published', cells))
    return rows


def _add_geometry(
    page: Page,
    features: Mapping[str, Tensor],
    numbers: Mapping[str, Sequence[float]],
    published: Published,
    out: Path,
) -> None:
    rows = [[name, *row, *reversed(features[name].shape)] for name, row in numbers.items()]
    save_table(['network', *NUMBERS, 'dimensions', 'images'], rows, out / 'geometry')
    shown = with_published(NUMBERS, numbers, published)
    page.add(
        'Geometry in four numbers',
        'Alignment: distance of two views of an image (0 is best). Uniformity: evenness over the sphere (lower is more '
        'even). RankMe: dimensions in use. Spread: 1 for an even cloud, 0 after a collapse.',
        html_table(NUMBERS, shown),
    )
    print_table(NUMBERS, shown)
    spectra = {name: spectrum(x) for name, x in features.items()}
    longest = max(map(len, spectra.values()))
    padded = [F.pad(values, (0, longest - len(values))).tolist() for values in spectra.values()]
    rows = [[rank, *row] for rank, row in enumerate(zip(*padded), start=1)]
    save_table(['rank', *spectra], rows, out / 'spectrum')
    series = {}
    for name, values in spectra.items():
        values = values[values > SMALLEST_SHARE].tolist()
        series[name] = (range(1, len(values) + 1), values)
    axes = ('rank', 'share of the variance')
    title = 'eigenvalues of the covariance'
    save_figure(lines(series, title, *axes, log='xy'), out / 'spectrum')
    drawn = chart(series, f'{title}, {axes[1]}', axes[0], log='xy', wide=True)
    page.add('Spectrum', 'A steep fall means that few directions carry the variance.', drawn)


def measures_page(
    subjects: Subjects,
    cfg: Config,
    count: int,
    loading: Mapping[str, Any],
    recalibrate: bool,
    out: Path,
) -> Path:
    """Write every measure that needs no labels, for any number of networks."""
    if 'train_dataloader' not in cfg:
        raise UserError(
            f"measures: '{cfg.filename}' has no train_dataloader, whose views LiDAR and alignment require; give the "
            'config of a pre-training',
            code='no-training-views',
        )
    images = Images(cfg, count, part='train', **loading)
    measured = {}
    for name, network in _networks(subjects, images, recalibrate).items():
        path = Path(subjects[name][0])
        meta = load_checkpoint(path).get('meta') if path.is_file() else None
        steps = meta.get('iter', math.inf) if isinstance(meta, dict) else math.inf
        loss = training_loss(path.parent, steps)
        measured[name] = measure_network(network, cfg, loss, count, **loading)
    names = [name for name in MEASURES if name in next(iter(measured.values()))]
    save_table(
        ['network', *names],
        [[network, *(numbers[name] for name in names)] for network, numbers in measured.items()],
        out / 'measures',
    )
    rows = []
    charts = []
    for name in names:
        measure = MEASURES[name]
        values = [numbers[name] for numbers in measured.values()]
        better = BETTER.get(measure.best, f'near {measure.best:g}')
        cells = [ABSENT if math.isnan(value) else f'{value:.4g}' for value in values]
        rows.append((name, [better, measure.images, *cells]))
        if any(map(math.isfinite, values)):
            series = {name: (range(len(values)), values)}
            charts.append(chart(series, name, 'network', ticks=list(measured), dots=True))
    columns = ['better', 'images', *measured]
    title = f'{len(images)} training images, labels not used'
    print_table(columns, rows, title)
    page = Page('Measures without labels', f'Features of {title}.')
    page.add(
        'All measures',
        'Images: the number from which on a measure changes by less than 5 % with more. Which measures predict accuracy: '
        'docs/reference/measures.md.',
        html_table(columns, rows),
    )
    page.add('One by one', '', charts)
    return page.write(out / 'measures.html')


def add_invariance(page: Page, kept: Mapping[str, Mapping[str, list[float]]]) -> None:
    """Add a chart for each change of the images, a line per network."""
    charts = []
    for change in next(iter(kept.values())):
        series = {name: (STRENGTHS, changes[change]) for name, changes in kept.items()}
        charts.append(chart(series, change, 'strength', normal=(0.0, 1.0)))
    page.add(
        'Invariances',
        'Test images after one change of growing strength. 1: the features do not change. 0: the changed image is no more '
        'similar to the original than another image is.',
        charts,
    )


def _networks(subjects: Subjects, images: Images, recalibrate: bool) -> dict[str, nn.Module]:
    networks = {name: images.network(*subject) for name, subject in subjects.items()}
    if recalibrate:
        for name, network in networks.items():
            refresh_statistics(network, _watched(images, f'BN statistics of {name}'))
    return networks


def _watched(batches: Iterable, label: str, images: Images | None = None) -> Iterable:
    """Return the batches, with a progress bar in a terminal."""
    images = images or batches
    return show_progress(batches, label, math.ceil(len(images) / images.batch_size))
