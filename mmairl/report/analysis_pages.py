"""Write the output of `mmairl analyze`: an HTML page, figures as SVG, PDF and PNG, and numbers as CSV."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from mmairl.analysis.cka import stage_cka
from mmairl.analysis.geometry import invariance, numbers_of, spectrum
from mmairl.analysis.subjects import Images
from mmairl.checkpoints.norms import (
    LARS_GROWTH,
    convolution_norms,
    looks_lars_trained,
    typical_growth,
)
from mmairl.checkpoints.read import Backbone
from mmairl.evaluation.backbone import refresh_statistics
from mmairl.evaluation.features import extract, pooled
from mmairl.report.figures import embedded, lines, save_figure
from mmairl.report.page import Page
from mmairl.report.table import Table

Subjects = Mapping[str, tuple]  # the arguments of `Images.network` for each network, by name
CHANGED = 256  # number of images to measure the invariances with
SMALLEST_SHARE = 1e-12  # shares of the variance below this value are rounding errors


class AnalysisPage(Page):
    """A page in the folder `out`, whose tables are also printed, and whose figures and numbers are also files."""

    def __init__(self, out: Path, title: str, lead: str) -> None:
        super().__init__(title, lead)
        self.out = out

    def add_table(self, name: str, heading: str, text: str, table: Table) -> None:
        table.save(self.out / name)
        self.add(heading, text, table.html())
        print(table.text(heading))

    def add_figure(self, name: str, heading: str, text: str, figure: Figure) -> None:
        save_figure(figure, self.out / name)
        self.add(heading, text, embedded(figure, heading))


def norms_page(networks: Mapping[str, Backbone], out: Path) -> Path:
    """Write a page with the weight norms of any number of checkpoints (Huang et al. 2022, Fig. 3a)."""
    series = {}
    verdicts = []
    for name, backbone in networks.items():
        norms = convolution_norms(backbone.weights)
        series[name] = (range(len(norms)), [*norms.values()])
        Table(['convolution', 'norm'], [*norms.items()]).save(out / f'norms_{len(series)}')
        looks = 'yes' if looks_lars_trained(backbone.weights) else 'no'
        verdicts.append([name, typical_growth(backbone.weights), looks])
    page = AnalysisPage(
        out, 'Weight norms', 'Which checkpoints have norms that are typical of LARS.'
    )
    page.add_table(
        'growth',
        'LARS-trained weights',
        f'Growth is the norm of a typical 3x3 convolution divided by its norm at initialization. Growth above {LARS_GROWTH} is '
        'typical of LARS. Apply NormRescale to such weights before fine-tuning.',
        Table(['network', 'growth', 'looks LARS-trained'], verdicts, digits=2),
    )
    page.add_figure(
        'norms',
        'Norms of the 3x3 convolutions',
        'In Huang et al. 2022, norms after training by LARS are about ten times as large as after SGD with weight decay, so '
        'the usual learning rates for fine-tuning are too low.',
        lines(
            series,
            'norms of the 3x3 convolutions',
            log='y',
            ticks=[key.removesuffix('.weight') for key in norms],
        ),
    )
    return page.write(out / 'norms.html')


def cka_page(subjects: Subjects, images: Images, recalibrate: bool, out: Path) -> Path:
    """Write a page with the linear CKA of the first network and each other network.

    A table has the CKA of each pair of stages, and a line chart that of equal stages (Huang et al. 2022, Fig. 3b).
    """
    page = AnalysisPage(
        out,
        'CKA',
        f'Similarity between the features that networks compute for {len(images)} images (linear CKA). It is 1 for equal '
        'features and 0 for unrelated features.',
    )
    networks = _networks(subjects, images, recalibrate)
    first, *others = networks
    series = {}
    for number, name in enumerate(others, 1):
        values, rows, columns = stage_cka(networks[first], networks[name], images)
        series[f'{first} and {name}'] = (range(len(rows)), values.diagonal().tolist())
        cells = [[row, *line] for row, line in zip(rows, values.tolist())]
        table = Table(['', *columns], cells, 2, heat=True)
        page.add_table(f'cka_{number}', f'CKA of {first} (rows) and {name} (columns)', '', table)
    heading = 'CKA of equal stages'
    page.add_figure('cka_stages', heading, '', lines(series, heading, 'stage', ticks=rows))
    return page.write(out / 'cka.html')


def geometry_page(
    subjects: Subjects, images: Images, recalibrate: bool, out: Path, seed: int
) -> Path:
    """Write a page about the geometry of the features of any number of networks, which is measured without labels."""
    measures: dict[str, list] = {}  # the cells of a row of the table, by the name of the measure
    spectra = {}
    networks = _networks(subjects, images, recalibrate)
    for name, network in networks.items():
        x = extract(network, images.dataset, images.how).x
        views = _views(network, images, seed) if 'train_dataloader' in images.cfg else ()
        found = numbers_of(x, views)
        changes = invariance(partial(images.embed, network), images.first(CHANGED))
        for change, value in changes.items():
            found[f'invariance to {change}'] = value
        for measure, value in found.items():
            measures.setdefault(measure, [measure]).append(value)
        shares = [share for share in spectrum(x).tolist() if share > SMALLEST_SHARE]
        spectra[name] = (range(1, len(shares) + 1), shares)
    page = AnalysisPage(
        out, 'Geometry', f'How each network arranges the features of {len(images)} images.'
    )
    page.add_table(
        'geometry',
        'Measures without labels',
        'RankMe: the number of dimensions in use. Uniformity: how evenly images cover the sphere; lower is more even. Spread: '
        '1 if images are spread evenly over the sphere, 0 after a collapse. Alignment: the mean squared distance between two '
        'views of an image. Invariance: similarity of the features of an image before and after a change: 1 if the features do '
        'not change, 0 if the changed image is no more similar to the original than other images are. Compare networks only on '
        'equal numbers of images.',
        Table(['measure', *networks], [*measures.values()], 3),
    )
    page.add_figure(
        'spectrum',
        'Spectrum',
        'A steep decline means that few directions carry most of the variance.',
        lines(spectra, 'shares of the variance', 'rank of the eigenvalue', log='xy'),
    )
    return page.write(out / 'geometry.html')


@torch.inference_mode()
def _views(network: nn.Module, images: Images, seed: int) -> list[Tensor]:
    """Return the features (images, C) of two augmented views."""
    torch.manual_seed(seed)
    batches = [[pooled(network, view).cpu() for view in views] for views in images.views()]
    return list(map(torch.cat, zip(*batches)))


def _networks(subjects: Subjects, images: Images, recalibrate: bool) -> dict[str, nn.Module]:
    networks = {name: images.network(*subject) for name, subject in subjects.items()}
    if recalibrate:
        for network in networks.values():
            refresh_statistics(network, images)
    return networks
