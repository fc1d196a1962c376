"""What tools/analyze.py leaves: pictures as PNG and SVG, numbers as CSV, and a page that shows them."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from mmairl.analysis.cka import full_cka, network_cka, recalibrate, stage_cka
from mmairl.analysis.geometry import STRENGTHS, Geometry, geometry, invariance
from mmairl.analysis.images import Images
from mmairl.evaluation.features import Features
from mmairl.models.siamese import pooled
from mmairl.report.analysis_figures import heat_map, invariance_lines, spectra, stage_lines
from mmairl.report.figures import svg
from mmairl.report.files import save_figure, save_table
from mmairl.report.norm_figures import norm_lines
from mmairl.report.page import Page
from mmairl.report.sections import add_maps, add_neighbours
from mmairl.report.table import figures_table
from mmairl.weights.norms import LARS_GROWTH, looks_lars_trained, typical_growth, weight_norms
from mmairl.weights.read import Backbone

Subjects = Mapping[str, tuple[str, str]]  # name to (checkpoint, part)
CHANGED = 256  # images that each augmentation alone is tried on


def norms_page(networks: Mapping[str, Backbone], kernel: int, out: Path) -> Path:
    """Fig. 3a over any number of checkpoints."""
    norms = {name: weight_norms(backbone.weights, kernel) for name, backbone in networks.items()}
    layers = list(dict.fromkeys(row.name for rows in norms.values() for row in rows))
    by_name = {name: {row.name: row.norm for row in rows} for name, rows in norms.items()}
    save_table(
        ('tensor', *norms), [(layer, *(of.get(layer) for of in by_name.values())) for layer in layers], out / 'norms'
    )
    figure = norm_lines(norms, f'norms of the {kernel}x{kernel} convolutions')
    save_figure(figure, out / 'norms')
    page = Page('Weight norms', 'How long the weight vectors of each network are.')
    page.add(
        'Layer by layer',
        'Weights that nothing shrinks grow with every step. LARS without L2 leaves them about ten times as long as SGD '
        'with it does, which fine-tuning by the recipe of SGD-trained networks then suffers from.',
        svg(figure, 'norms'),
    )
    verdicts = {name: _verdict(backbone) for name, backbone in networks.items()}
    page.add(
        'Do they look LARS-trained?',
        f'Growth is the norm of the typical 3x3 convolution over its norm at the start; above {LARS_GROWTH} it is what LARS '
        'without L2 on batch norm leaves, and NormRescale is the remedy before fine-tuning.',
        figures_table(('growth', 'looks LARS-trained'), verdicts),
    )
    _say(('network', 'growth', 'looks LARS-trained'), verdicts)
    return page.write(out / 'norms.html')


def _verdict(backbone: Backbone) -> tuple[str, str]:
    ratio = typical_growth(backbone.weights)
    return '–' if ratio is None else f'{ratio:.2f}', 'yes' if looks_lars_trained(backbone.weights) else 'no'


def cka_page(subjects: Subjects, images: Images, stage: str, full: bool, anew: bool, out: Path) -> Path:
    """Two networks by stages, or more at one stage."""
    networks = _networks(subjects, images, anew)
    lead = f'How alike what networks say of the same {len(images)} images is: 1 for the same, 0 for unrelated.'
    page = Page('CKA', lead)
    if len(networks) == 2:
        _compare_stages(page, networks, images, full, out)
    else:
        _compare_networks(page, networks, images, stage, out)
    return page.write(out / 'cka.html')


def _compare_stages(page: Page, networks: Mapping[str, nn.Module], images: Images, full: bool, out: Path) -> None:
    (first, second), (a, b) = networks.keys(), networks.values()
    values, rows, columns = stage_cka(a, b, _shown(images, 'CKA'))
    figure = _save(heat_map(values, rows, columns, 'linear CKA', (first, second)), out / 'cka', rows, columns, values)
    lead = 'Each stage of one network with each of the other; equal stages lie on the diagonal.'
    page.add('Stage by stage', lead, svg(figure, 'cka'))
    equal = values.diagonal().tolist()
    line = stage_lines({f'{first} and {second}': equal}, rows, 'equal stages')
    save_figure(line, out / 'cka_stages')
    page.add('Equal stages', 'As in Fig. 3b of the paper.', svg(line, 'stages'))
    _say(('stage', 'CKA'), {name: (f'{value:.4f}',) for name, value in zip(rows, equal)})
    if full:
        number = full_cka(a, b, _shown(images, 'CKA over all images'))
        page.add('Pooled features, all images at once', f'The biased estimate, as papers report it: {number:.4f}.')
        print(f'pooled features, all images at once, biased: {number:.4f}')


def _compare_networks(page: Page, networks: Mapping[str, nn.Module], images: Images, stage: str, out: Path) -> None:
    names = list(networks)
    values = network_cka(list(networks.values()), _shown(images, 'CKA'), stage)
    figure = heat_map(values, names, names, f'linear CKA at {stage}', ('', ''))
    _save(figure, out / 'cka', names, names, values)
    page.add('Network by network', f'Each network with each other, at {stage}.', svg(figure, 'cka'))
    _say(('network', *names), {name: [f'{v:.3f}' for v in row] for name, row in zip(names, values.tolist())})


def _save(figure, stem: Path, rows: list[str], columns: list[str], values: Tensor):
    save_figure(figure, stem)
    save_table(('', *columns), [(row, *line) for row, line in zip(rows, values.tolist())], stem)
    return figure


def geometry_page(subjects: Subjects, images: Images, method: str, anew: bool, out: Path, seed: int) -> Path:
    """Every instrument that needs one network, over any number of them."""
    networks = _networks(subjects, images, anew)
    page = Page('Geometry', f'How each network lays out {len(images)} images, and what it has learned to ignore.')
    features, found, kept = {}, {}, {}
    for name, network in networks.items():
        embed = embedding(network, images)
        features[name] = torch.cat([embed(batch).cpu() for batch in _shown(images.raw(), name, images)])
        found[name] = _measure(network, images, features[name], seed)
        few = torch.cat([batch for batch, _ in zip(images.raw(), range(-(-CHANGED // images.batch_size)))])[:CHANGED]
        kept[name] = invariance(embed, few)
    _add_geometry(page, found, out)
    add_invariance(page, kept, out)
    labelled = {name: Features(x, images.labels) for name, x in features.items()}
    if method != 'none':
        add_maps(page, labelled, images.classes, seed, method)
    for name, of in labelled.items():
        add_neighbours(
            page, (images.picture, of), (images.picture, of), images.classes, f'What lies nearest for {name}?'
        )
    return page.write(out / 'geometry.html')


def embedding(network: nn.Module, images: Images) -> Callable[[Tensor], Tensor]:
    """The pooled features of images in [0, 1]."""

    @torch.inference_mode()
    def embed(batch: Tensor) -> Tensor:
        return pooled(network(images.normalise(batch))).float()

    return embed


@torch.inference_mode()
def _measure(network: nn.Module, images: Images, x: Tensor, seed: int) -> Geometry:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if images.cfg.get('train_dataloader'):
            pairs = [tuple(pooled(network(view)).float().cpu() for view in views) for views in images.views()]
            first, second = (torch.cat(side) for side in zip(*pairs))
            return geometry(x, first, second)
    return geometry(x, x, x.new_full(x.shape, torch.nan))  # an evaluation config augments nothing


def _add_geometry(page: Page, found: Mapping[str, Geometry], out: Path) -> None:
    columns = ('alignment', 'uniformity', 'RankMe', 'spread')
    rows = {name: (of.alignment, of.uniformity, of.rankme, of.spread) for name, of in found.items()}
    numbers = [(name, *row, found[name].dimensions, found[name].images) for name, row in rows.items()]
    save_table(('network', *columns, 'dimensions', 'images'), numbers, out / 'geometry')
    shown = {name: [f'{value:.3f}' if value == value else '–' for value in row] for name, row in rows.items()}
    page.add(
        'In four numbers',
        'Alignment is how far apart two views of an image lie (0 is best); uniformity how evenly images fill the sphere '
        '(lower is more even); RankMe how many dimensions are in use; spread is 1 for an even cloud and 0 after collapse.',
        figures_table(columns, shown),
    )
    _say(('network', *columns), shown)
    figure = spectra({name: of.spectrum for name, of in found.items()}, 'eigenvalues of the covariance')
    save_figure(figure, out / 'spectrum')
    longest = max(len(of.spectrum) for of in found.values())
    columns_of = [F.pad(of.spectrum, (0, longest - len(of.spectrum))).tolist() for of in found.values()]
    save_table(('rank', *found), [(rank + 1, *row) for rank, row in enumerate(zip(*columns_of))], out / 'spectrum')
    page.add('Spectrum', 'A steep fall means that few directions carry all there is.', svg(figure, 'spectrum'))


def add_invariance(page: Page, kept: Mapping[str, Mapping[str, list[float]]], out: Path | None = None) -> None:
    """What each network has learned to ignore, change by change."""
    figure = invariance_lines(kept, STRENGTHS)
    if out is not None:
        save_figure(figure, out / 'invariance')
        rows = [(name, change, *values) for name, of in kept.items() for change, values in of.items()]
        save_table(('network', 'change', *(f'strength {s}' for s in STRENGTHS)), rows, out / 'invariance')
    page.add(
        'What has it learned to ignore?',
        'Test images are changed in one way alone, from not at all to strongly. 1 means that the features do not notice; 0 '
        'that the changed image looks no more like itself than like any other image.',
        svg(figure, 'invariance'),
    )


def _networks(subjects: Subjects, images: Images, anew: bool) -> dict[str, nn.Module]:
    networks = {name: images.network(*subject) for name, subject in subjects.items()}
    if anew:
        for name, network in networks.items():
            recalibrate(network, _shown(images, f'BN statistics of {name}'))
    return networks


def _shown(batches, label: str, images: Images | None = None):
    """The batches, with progress where somebody watches."""
    console = Console(stderr=True)
    images = images or batches
    total = -(-len(images) // images.batch_size)
    return track(batches, label, total, console=console, transient=True) if console.is_terminal else batches


def _say(header: tuple[str, ...], rows: Mapping[str, tuple | list]) -> None:
    from rich.table import Table

    table = Table()
    for number, name in enumerate(header):
        table.add_column(name, justify='right' if number else 'left')
    for name, row in rows.items():
        table.add_row(name, *row)
    Console().print(table)
