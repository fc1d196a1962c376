"""The output of tools/analyze.py: pictures as PNG and SVG, numbers as CSV, and a page that shows them."""

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
from mmairl.analysis.measures import MEASURES, measure_network, training_loss
from mmairl.analysis.subjects import Images
from mmairl.checkpoints.load import load_checkpoint
from mmairl.checkpoints.norms import LARS_GROWTH, looks_lars_trained, typical_growth, weight_norms
from mmairl.checkpoints.read import Backbone
from mmairl.errors import UserError
from mmairl.evaluation.backbone import refresh_statistics
from mmairl.evaluation.features import Features, show_progress
from mmairl.models.backbones import pooled
from mmairl.models.spectrum import rankme, spread
from mmairl.report.charts import chart
from mmairl.report.figures import heat_map, lines, norm_curves, norm_lines, save_figure
from mmairl.report.page import Page
from mmairl.report.sections import add_maps, add_neighbours
from mmairl.report.table import html_table, print_table, save_table

Subjects = Mapping[str, tuple[str, str]]  # name to (checkpoint, part)
CHANGED = 256  # images that each augmentation alone is tried on


def norms_page(networks: Mapping[str, Backbone], out: Path) -> Path:
    """Fig. 3a over any number of checkpoints."""
    norms = {name: weight_norms(backbone.weights, kernel=3) for name, backbone in networks.items()}
    layers = list(dict.fromkeys(row.name for rows in norms.values() for row in rows))
    by_name = {name: {row.name: row.norm for row in rows} for name, rows in norms.items()}
    table = [(layer, *(by_layer.get(layer) for by_layer in by_name.values())) for layer in layers]
    save_table(('tensor', *norms), table, out / 'norms')
    title = 'norms of the 3x3 convolutions'
    save_figure(norm_lines(norms, title), out / 'norms')
    page = Page('Weight norms', 'How long the weight vectors of each network are.')
    page.add_named(
        'norms', figure=chart(**norm_curves(norms), title=title, x='convolution', wide=True)
    )
    columns, verdicts = ('growth', 'looks LARS-trained'), []
    for name, backbone in networks.items():
        growth = typical_growth(backbone.weights)
        looks = 'yes' if looks_lars_trained(backbone.weights) else 'no'
        verdicts.append((name, ('–' if growth is None else f'{growth:.2f}', looks)))
    page.add_named('growth', limit=LARS_GROWTH, figure=html_table(columns, verdicts))
    print_table(columns, verdicts)
    return page.write(out / 'norms.html')


def cka_page(
    subjects: Subjects, images: Images, stage: str, full: bool, anew: bool, out: Path
) -> Path:
    """Two networks by stages, or more at one stage."""
    networks = _networks(subjects, images, anew)
    names, two, batches = list(networks), len(networks) == 2, _watched(images, 'CKA')
    lead = f'How alike what networks say of the same {len(images)} images is: 1 for the same, 0 for unrelated.'
    page = Page('CKA', lead)
    if two:
        values, rows, columns = stage_cka(*networks.values(), batches)
        heading = 'Stage by stage'
        text = f'Each stage of {names[0]}, in rows, with each of {names[1]}; equal stages lie on the diagonal.'
        figure = heat_map(values, rows, columns, 'linear CKA', names)
    else:
        values, rows, columns = network_cka(list(networks.values()), batches, stage), names, names
        heading, text = 'Network by network', f'Each network with each other, at {stage}.'
        figure = heat_map(values, rows, columns, f'linear CKA at {stage}', ('', ''))
    save_table(
        ('', *columns), [(row, *line) for row, line in zip(rows, values.tolist())], out / 'cka'
    )
    save_figure(figure, out / 'cka')
    shaded = [(name, [f'{value:.2f}' for value in row]) for name, row in zip(rows, values.tolist())]
    page.add(heading, text, html_table(columns, shaded, heat=True))
    if not two:
        print_table(
            names, [(name, [f'{v:.3f}' for v in row]) for name, row in zip(names, values.tolist())]
        )
        return page.write(out / 'cka.html')
    _equal_stages(page, {' and '.join(names): values.diagonal().tolist()}, rows, out)
    if full:
        number = full_cka(*networks.values(), _watched(images, 'CKA over all images'))
        page.add(
            'Pooled features, all images at once',
            f'The biased estimate, as papers report it: {number:.4f}.',
        )
        print(f'pooled features, all images at once, biased: {number:.4f}')
    return page.write(out / 'cka.html')


def cka_lines_page(subjects: Subjects, images: Images, anew: bool, out: Path) -> Path:
    """The first network beside each other one, at equal stages: a line each, as Fig. 3b of the paper."""
    (first, network), *others = _networks(subjects, images, anew).items()
    page, found = (
        Page(
            'CKA',
            f'How alike what networks say of the same {len(images)} images is, stage by stage.',
        ),
        {},
    )
    for name, other in others:
        values, stages, _ = stage_cka(network, other, _watched(images, 'CKA'))
        found[f'{first} and {name}'] = values.diagonal().tolist()
    save_table(('', *stages), [(name, *line) for name, line in found.items()], out / 'cka')
    _equal_stages(page, found, stages, out)
    return page.write(out / 'cka.html')


def _equal_stages(
    page: Page, found: Mapping[str, list[float]], stages: Sequence[str], out: Path
) -> None:
    series = {name: (range(len(line)), line) for name, line in found.items()}
    save_figure(lines(series, 'equal stages', y='CKA', ticks=stages), out / 'cka_stages')
    page.add(
        'Equal stages',
        'As in Fig. 3b of the paper.',
        chart(series, 'CKA', 'stage', ticks=stages, wide=True),
    )
    print_table(
        stages, [(name, [f'{value:.4f}' for value in line]) for name, line in found.items()]
    )


def geometry_page(
    subjects: Subjects,
    images: Images,
    anew: bool,
    out: Path,
    seed: int,
    published: Mapping[str, Mapping[str, float]] = {},
) -> Path:
    """Every instrument that needs one network, over any number of them; published numbers of a network stand below its own."""
    networks = _networks(subjects, images, anew)
    page = Page(
        'Geometry',
        f'How each network lays out {len(images)} images, and what it has learned to ignore.',
    )
    features, measured, kept = {}, {}, {}
    for name, network in networks.items():
        embed = partial(images.embed, network)
        features[name] = torch.cat(
            [embed(batch).cpu() for batch in _watched(images.raw(), name, images)]
        )
        measured[name] = _measure(network, images, features[name], seed)
        few = torch.cat(
            [batch for batch, _ in zip(images.raw(), range(-(-CHANGED // images.batch_size)))]
        )[:CHANGED]
        kept[name] = invariance(embed, few)
    _add_geometry(page, features, measured, published, out)
    add_invariance(page, kept)
    rows = [
        (name, change, *values)
        for name, changes in kept.items()
        for change, values in changes.items()
    ]
    save_table(
        ('network', 'change', *(f'strength {s}' for s in STRENGTHS)), rows, out / 'invariance'
    )
    labelled = {name: Features(x, images.labels) for name, x in features.items()}
    add_maps(page, labelled, images.classes, seed)
    for name, bank in labelled.items():
        same = (images.picture, bank)
        add_neighbours(page, same, same, images.classes, f'Nearest neighbors by {name}')
    return page.write(out / 'geometry.html')


@torch.inference_mode()
def _measure(network: nn.Module, images: Images, x: Tensor, seed: int) -> tuple[float, ...]:
    """Alignment, of two augmented views of each image, uniformity, RankMe and spread."""
    first, second = x, x.new_full(x.shape, torch.nan)  # an evaluation config augments nothing
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if images.cfg.get('train_dataloader'):
            pairs = [
                tuple(pooled(network(view)).float().cpu() for view in views)
                for views in images.views()
            ]
            first, second = (torch.cat(side) for side in zip(*pairs))
    return alignment(first, second), uniformity(x), rankme(x), spread(x)


def beside_published(
    columns: Sequence[str],
    measured: Mapping[str, Sequence[float]],
    published: Mapping[str, Mapping[str, float]],
) -> list[tuple[str, list[str]]]:
    """Return the rows of a table: a network's measured numbers, and below them what was published of it.

    >>> beside_published(['alignment', 'spread'], {'BYOL': [0.5, 0.91]}, {'BYOL': {'top1': 71.9, 'alignment': 0.25}})
    [('BYOL', ['0.500', '0.910']), ('BYOL, as published', ['0.25', '–'])]
    """
    shown = []
    for name, row in measured.items():
        shown.append((name, [f'{value:.3f}' if value == value else '–' for value in row]))
        printed = published.get(name, {})
        if printed.keys() & {*columns}:
            shown.append(
                (f'{name}, as published', [str(printed.get(column, '–')) for column in columns])
            )
    return shown


def _add_geometry(
    page: Page,
    features: Mapping[str, Tensor],
    numbers: Mapping[str, tuple[float, ...]],
    published: Mapping[str, Mapping[str, float]],
    out: Path,
) -> None:
    columns = ('alignment', 'uniformity', 'RankMe', 'spread')
    rows = [
        (name, *row, features[name].shape[1], len(features[name])) for name, row in numbers.items()
    ]
    save_table(('network', *columns, 'dimensions', 'images'), rows, out / 'geometry')
    shown = beside_published(columns, numbers, published)
    page.add_named('four_numbers', figure=html_table(columns, shown))
    print_table(columns, shown)
    spectra = {name: spectrum(x) for name, x in features.items()}
    longest = max(map(len, spectra.values()))
    padded = [F.pad(values, (0, longest - len(values))).tolist() for values in spectra.values()]
    save_table(
        ('rank', *spectra),
        [(rank + 1, *row) for rank, row in enumerate(zip(*padded))],
        out / 'spectrum',
    )
    kept = {name: values[values > 1e-12].tolist() for name, values in spectra.items()}
    series = {name: (range(1, len(values) + 1), values) for name, values in kept.items()}
    title, axes = 'eigenvalues of the covariance', ('rank', 'share of the variance')
    save_figure(lines(series, title, *axes, log='xy'), out / 'spectrum')
    figure = chart(series, f'{title}, {axes[1]}', axes[0], log='xy', wide=True)
    page.add('Spectrum', 'A steep fall means that few directions carry all there is.', figure)


def measures_page(
    subjects: Subjects, cfg: Config, count: int, how: Mapping[str, Any], anew: bool, out: Path
) -> Path:
    """Every measure that needs no label, over any number of networks."""
    if 'train_dataloader' not in cfg:
        raise UserError(
            f'{cfg.filename} has no training, whose views LiDAR and alignment need; give the config of a pre-training'
        )
    images, found = Images(cfg, count, part='train', **how), {}
    for name, network in _networks(subjects, images, anew).items():
        path = Path(subjects[name][0])
        meta = load_checkpoint(path).get('meta') if path.is_file() else None
        steps = meta.get('iter', math.inf) if isinstance(meta, dict) else math.inf
        found[name] = measure_network(network, cfg, training_loss(path.parent, steps), count, **how)
    names = [name for name in MEASURES if name in next(iter(found.values()))]
    values = torch.tensor(
        [[numbers[name] for name in names] for numbers in found.values()], dtype=torch.float64
    )
    save_table(('network', *names), list(zip(found, *values.T.tolist())), out / 'measures')
    better = {math.inf: 'higher', -math.inf: 'lower', 0.0: 'lower'}
    rows = [
        (
            name,
            [
                better.get(measure.best, f'near {measure.best:g}'),
                measure.images,
                *('–' if math.isnan(value) else f'{value:.4g}' for value in column),
            ],
        )
        for name, column in zip(names, values.T.tolist())
        if (measure := MEASURES[name])
    ]
    columns = ('better', 'images', *found)
    print_table(columns, rows, f'{len(images)} training images, labels unseen')
    page = Page(
        'Measures without labels',
        f'Of the features of {len(images)} training images, labels unseen.',
    )
    page.add_named('all_measures', figure=html_table(columns, rows))
    axis = dict(x='network', ticks=list(found), dots=True)
    drawn = [
        (name, column)
        for name, column in zip(names, values.T.tolist())
        if any(map(math.isfinite, column))
    ]
    page.add(
        'One by one', '', [chart({name: (range(len(y)), y)}, name, **axis) for name, y in drawn]
    )
    return page.write(out / 'measures.html')


def add_invariance(page: Page, kept: Mapping[str, Mapping[str, list[float]]]) -> None:
    """Add a chart for each change: how much likeness is left as it grows, one line a network."""
    changes = next(iter(kept.values()))
    curves = {
        change: {name: (STRENGTHS, left[change]) for name, left in kept.items()}
        for change in changes
    }
    charts = [
        chart(series, change, 'strength', normal=(0.0, 1.0)) for change, series in curves.items()
    ]
    page.add_named('invariance', figure=charts)


def _networks(subjects: Subjects, images: Images, anew: bool) -> dict[str, nn.Module]:
    networks = {name: images.network(*subject) for name, subject in subjects.items()}
    if anew:
        for name, network in networks.items():
            refresh_statistics(network, _watched(images, f'BN statistics of {name}'))
    return networks


def _watched(batches: Iterable, label: str, images: Images | None = None) -> Iterable:
    """The batches, with a progress bar where somebody watches."""
    images = images or batches
    return show_progress(batches, label, -(-len(images) // images.batch_size))
