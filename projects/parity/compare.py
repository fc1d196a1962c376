"""Compare computations of other libraries with mmairl's on the same inputs: python -m projects.parity.compare [--write].

If a library defines a computation differently, the comparison first removes this difference and names it in the table. Any
remaining difference is due to the code. The command prints a Markdown table, and `--write` also updates tables.md. If a
library is not installed or its code raises an error, the rows of this library state this.
"""

import argparse
import importlib.metadata
import importlib.util
import math
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from mmengine.config import Config
from torch import Tensor, nn

from mmairl.config import config_path
from mmairl.engine.hooks.after_step import momentum_at
from mmairl.engine.optim.lars import LARS
from mmairl.evaluation.neighbors import nearest, vote
from mmairl.models.heads import ContrastiveHead, RegressionHead
from mmairl.models.heads.barlow import BarlowTwinsHead
from mmairl.models.heads.contrastive import InfoNCEHead
from mmairl.models.heads.dino import DINOHead
from mmairl.models.heads.lejepa import LeJEPAHead
from mmairl.models.heads.swav import SwAVHead
from mmairl.models.heads.vicreg import VICRegHead

TABLES = Path(__file__).with_name('tables.md')
TABLE = re.compile(r'(?<=<!-- table -->\n).*?(?=<!-- end -->)', re.DOTALL)
PACKAGES = {'lightly': 'lightly', 'solo': 'solo-learn', 'stable_pretraining': 'stable-pretraining'}
# The result of a comparison: mmairl's values, the library's values, and how the definition of the library differs.
Outcome = tuple[Tensor, Tensor, str]
SOLO_MOCO = (
    'its MoCo v2+ averages the two directions (half the gradient of our sum), has a queue for each view, and has no '
    'predictor'
)
COMPARISONS: list[tuple[str, str, Callable[[], Outcome]]] = []


def compares(package: str, what: str) -> Callable:
    def add(function: Callable[[], Outcome]) -> Callable[[], Outcome]:
        COMPARISONS.append((package, what, function))
        return function

    return add


def installed(package: str) -> ModuleSpec:
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f'{PACKAGES[package]} is not installed')
    return spec


def source(package: str, file: str) -> ModuleType:
    """Import one file of a package. If the import of the package fails, import the file alone."""
    spec = installed(package)
    with suppress(ImportError):
        return importlib.import_module('.'.join([package, *Path(file).with_suffix('').parts]))
    folder, inner = Path(spec.submodule_search_locations[0]), f'parity_{package}'
    # The packages around the file are replaced by empty modules, so that relative imports in the file still work.
    for part in (
        None,
        *Path(file).parent.parts,
    ):
        folder, inner = (folder / part, f'{inner}.{part}') if part else (folder, inner)
        around = sys.modules.setdefault(inner, ModuleType(inner))
        around.__path__ = [str(folder)]
    return importlib.import_module(f'{inner}.{Path(file).stem}')


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Return unit queries, keys and negatives in float64."""
    generator = torch.Generator().manual_seed(0)
    sizes = [(32, 128), (32, 128), (256, 128)]
    q, k, negatives = (
        F.normalize(torch.randn(*s, generator=generator, dtype=torch.float64), dim=1) for s in sizes
    )
    return q, k, negatives


def both_ways(head: nn.Module, q: Tensor, k: Tensor) -> Tensor:
    """Return the sum of two losses by mmairl: with queries `q` and keys `k`, and with queries `k` and keys `q`."""
    return head({0: q, 1: k}, {0: q, 1: k}, None)['loss']


@compares('lightly', 'InfoNCE with a queue, temperature 0.2')
def _() -> Outcome:
    q, k, negatives = batch()
    loss = source('lightly', 'loss/ntx_ent_loss.py').NTXentLoss(
        temperature=0.2, memory_bank_size=(256, 128)
    )
    loss.memory_bank.bank = negatives
    loss.memory_bank.bank_ptr = torch.zeros(1, dtype=torch.long)
    ours = ContrastiveHead(0.2)({0: q}, {1: k}, negatives)['loss']
    return ours, loss(q, k), ''


@compares('solo', 'InfoNCE with a queue, temperature 0.2')
def _() -> Outcome:
    q, k, negatives = batch()
    theirs = source('solo', 'losses/moco.py').moco_loss_func(q, k, negatives.T, temperature=0.2)
    ours = ContrastiveHead(0.2)({0: q}, {1: k}, negatives)['loss']
    return ours, theirs, SOLO_MOCO


@compares('lightly', "BYOL's loss, symmetric")
def _() -> Outcome:
    q, k, _ = batch()
    loss = source('lightly', 'loss/negative_cosine_similarity.py').NegativeCosineSimilarity()
    theirs = 0.5 * (loss(q, k) + loss(k, q))
    factor = (
        'its examples average -cos over the directions, so the gradient is a quarter of ours; its benchmark scripts have '
        'the gradient of 2 - 2 cos'
    )
    return both_ways(RegressionHead(), q, k), 4 + 4 * theirs, factor


@compares('solo', "BYOL's loss, symmetric")
def _() -> Outcome:
    q, k, _ = batch()
    loss = source('solo', 'losses/byol.py').byol_loss_func
    return both_ways(RegressionHead(), q, k), loss(q, k) + loss(k, q), ''


def simclr(loss: Callable[[Tensor, Tensor], Tensor]) -> Outcome:
    """Compare NT-Xent at temperature 0.1. mmairl computes Eq. 6 of BYOL with beta = 1, which is 4 alpha times NT-Xent."""
    q, k, _ = batch()
    ours = both_ways(InfoNCEHead(alpha=0.1, beta=1.0), q, k) / (4 * 0.1)
    factor = "our loss has BYOL's factor 4 alpha; a learning rate for NT-Xent must be divided by this factor"
    return ours, loss(q, k), factor


@compares('lightly', "SimCLR's NT-Xent")
def _() -> Outcome:
    return simclr(source('lightly', 'loss/ntx_ent_loss.py').NTXentLoss(temperature=0.1))


@compares('solo', "SimCLR's NT-Xent")
def _() -> Outcome:
    return simclr(
        lambda q, k: source('solo', 'losses/simclr.py').simclr_loss_func(q, k, temperature=0.1)
    )


def gradients(loss: Tensor, inputs: list[Tensor]) -> Tensor:
    """Return the loss and its gradients as one vector."""
    return torch.cat([loss.reshape(1), *(g.flatten() for g in torch.autograd.grad(loss, inputs))])


def in_batch(
    head: nn.Module, theirs: Callable[[Tensor, Tensor], Tensor], factor: str = ''
) -> Outcome:
    """Compare a loss and its gradients on projections of two views that are not normalized."""
    q, k = (11 * z.requires_grad_() for z in batch()[:2])
    return (
        gradients(head({0: q}, {1: k}, None)['loss'], [q, k]),
        gradients(theirs(q, k), [q, k]),
        factor,
    )


@compares('lightly', "Barlow Twins' loss")
def _() -> Outcome:
    loss = source('lightly', 'loss/barlow_twins_loss.py').BarlowTwinsLoss(lambda_param=0.0051)
    return in_batch(BarlowTwinsHead(weight=0.0051), loss)


@compares('lightly', "VICReg's loss")
def _() -> Outcome:
    loss = source('lightly', 'loss/vicreg_loss.py').VICRegLoss()
    return in_batch(
        VICRegHead(variance=12.5),
        loss,
        "halves the variance term, as the authors' release does; the paper does not",
    )


@compares('lightly', "SwAV's loss, two large crops and one small")
def _() -> Outcome:
    z = {
        view: row.clone().requires_grad_()
        for view, row in enumerate(torch.cat(batch()[:2]).chunk(4)[:3])
    }
    head = SwAVHead(channels=128, prototypes=16).double()
    keys = {view: z[view].detach() for view in (0, 1)}
    ours = gradients(head(z, keys, None)['loss'], list(z.values()))
    scores = [F.normalize(row, dim=1) @ head.prototypes.weight.T for row in z.values()]
    theirs = source('lightly', 'loss/swav_loss.py').SwaVLoss()(scores[:2], scores[2:])
    return (
        ours,
        gradients(theirs, list(z.values())),
        "averages over crops, as the authors' release does",
    )


@compares('lightly', "DINO's loss, two large crops and one small")
def _() -> Outcome:
    z = {
        view: row.clone().requires_grad_()
        for view, row in enumerate(torch.cat(batch()[:2]).chunk(4)[:3])
    }
    k = {view: torch.flip(z[view].detach(), [1]) for view in (0, 1)}
    ours = gradients(DINOHead(prototypes=128).double()(z, k, None)['loss'], list(z.values()))
    loss = (
        source('lightly', 'loss/dino_loss.py')
        .DINOLoss(output_dim=128, warmup_teacher_temp=0.04)
        .double()
    )
    return (
        ours,
        gradients(loss(list(k.values()), list(z.values()), epoch=0), list(z.values())),
        'stores its temperature in float32',
    )


@compares('lightly', "LeJEPA's loss, two large crops and one small")
def _() -> Outcome:
    z = {
        view: 11 * row.requires_grad_()
        for view, row in enumerate(torch.cat(batch()[:2]).chunk(4)[:3])
    }
    head, made = LeJEPAHead(weight=0.05, slices=64).double(), []
    theirs = source('lightly', 'loss/lejepa_loss.py').LeJEPALoss(
        lambda_param=0.05, sigreg_num_vectors=64
    )
    for loss in (
        lambda: head(z, {view: z[view] for view in (0, 1)}, None)['loss'],
        lambda: theirs(global_proj=torch.stack([z[0], z[1]]), local_proj=z[2].unsqueeze(0)),
    ):
        torch.manual_seed(0)
        made.append(gradients(loss(), list(z.values())))
    return *made, 'stores its integration points in float32'


@compares('lightly', "the teacher's momentum over a run of 100 steps")
def _() -> Outcome:
    schedule = source('lightly', 'utils/scheduler.py').cosine_schedule
    ours = torch.tensor(
        [momentum_at(step, 100, 0.99, 'cosine') for step in range(1, 101)], dtype=torch.float64
    )
    theirs = torch.tensor(
        [schedule(step, 100, 0.99, 1.0) for step in range(1, 101)], dtype=torch.float64
    )
    factor = (
        'counts steps from 0 to K - 1, so the last step has momentum 1; its examples update the momentum once per epoch, '
        'not once per step'
    )
    return ours, theirs, factor


@compares('solo', "the teacher's momentum over a run of 100 steps")
def _() -> Outcome:
    updater = source('solo', 'utils/momentum.py').MomentumUpdater(0.99, 1.0)
    ours, theirs = [], []
    for step in range(1, 101):
        updater.update_tau(step, 100)
        ours.append(momentum_at(step, 100, 0.99, 'cosine'))
        theirs.append(updater.cur_tau)
    return (
        torch.tensor(ours, dtype=torch.float64),
        torch.tensor(theirs, dtype=torch.float64),
        'its k-th update of the teacher uses the momentum of step k - 1',
    )


@compares('solo', 'one update of the teacher')
def _() -> Outcome:
    torch.manual_seed(0)
    student, teacher = nn.Linear(64, 64).double(), nn.Linear(64, 64).double()
    expected = torch.lerp(teacher.weight.detach(), student.weight.detach(), 1 - 0.99)
    source('solo', 'utils/momentum.py').MomentumUpdater(0.99).update(student, teacher)
    return (
        expected,
        teacher.weight.detach(),
        'does not average running statistics; neither does mmairl',
    )


def lars(
    theirs: Callable[[nn.Parameter, float], torch.optim.Optimizer], rates: list[float], factor: str
) -> Outcome:
    """Compare how LARS of mmairl and `theirs` change a weight with the same gradients. `rates` has one rate for each step."""
    torch.manual_seed(0)
    start, gradients = (
        torch.randn(64, 64, dtype=torch.float64),
        torch.randn(len(rates), 64, 64, dtype=torch.float64),
    )
    changes = []
    for make in (lambda w, lr: LARS([w], lr, momentum=0.9, weight_decay=1e-4), theirs):
        weight = nn.Parameter(start.clone())
        optimizer = make(weight, rates[0])
        for rate, gradient in zip(rates, gradients):
            optimizer.param_groups[0]['lr'] = rate
            weight.grad = gradient.clone()
            optimizer.step()
        changes.append(weight.detach() - start)
    return *changes, factor


def lars_of(package: str) -> Callable[[nn.Parameter, float], torch.optim.Optimizer]:
    if package == 'lightly':
        kind = source('lightly', 'utils/lars.py').LARS
        return lambda w, lr: kind([w], lr=lr, momentum=0.9, weight_decay=1e-4)
    if package == 'stable_pretraining':
        kind = source('stable_pretraining', 'optim/lars.py').LARS
        return lambda w, lr: kind([w], lr=lr, momentum=0.9, weight_decay=1e-4, eta=1e-3)
    wrapper = source('solo', 'utils/lars.py').LARSWrapper
    return lambda w, lr: wrapper(
        torch.optim.SGD([w], lr=lr, momentum=0.9, weight_decay=1e-4), eta=1e-3
    )


def add_lars(package: str) -> None:
    steady, rising = [0.2] * 20, [0.01 * step for step in range(1, 21)]
    eps = 'adds 1e-8 to the denominator of the trust ratio'
    outside = (
        'applies the rate outside of the momentum buffer (ours: inside, as in the release of Huang et al. 2022); the '
        'comparison does not remove this factor'
    )
    compares(package, 'LARS, 20 steps at a steady rate')(
        lambda: lars(lars_of(package), steady, eps)
    )
    compares(package, 'LARS, 20 steps of a warm-up')(
        lambda: lars(lars_of(package), rising, outside)
    )


for name in PACKAGES:
    add_lars(name)


@compares('lightly', 'k-NN class scores, k = 20, temperature 0.1')
def _() -> Outcome:
    q, _, bank = batch()
    labels = torch.arange(len(bank)) % 10
    similarity, position = nearest(q, bank, 20)
    ours = vote(similarity, labels[position], 10, 0.1).argsort(dim=1, descending=True)
    theirs = source('lightly', 'utils/benchmarking/knn.py').knn_predict(
        q, bank.T, labels, 10, 20, 0.1
    )
    factor = 'by default, k = 200 and temperature 0.1 (ours: k = 20 and 200, temperature 0.07)'
    return ours.double(), theirs.double(), factor


def drawn_parameters(steps: list) -> Tensor:
    """Return the parameters of lightly's view: the smallest crop, and the probability and strength of each operation."""
    by_name = {type(step).__name__: step for step in steps}
    jitter, blur = by_name['RandomApply'], by_name['GaussianBlur']
    strengths = [
        getattr(jitter.transforms[0], name)[1]
        for name in ('brightness', 'contrast', 'saturation', 'hue')
    ]
    solarize = by_name['RandomSolarization'].prob if 'RandomSolarization' in by_name else 0.0
    crop, gray, flip = (
        by_name[f'Random{name}'] for name in ('ResizedCrop', 'Grayscale', 'HorizontalFlip')
    )
    values = [
        crop.scale[0],
        jitter.p,
        *(s - 1 for s in strengths[:3]),
        strengths[3],
        gray.p,
        blur.prob,
        *blur.sigmas,
    ]
    return torch.tensor([*values, flip.p, solarize], dtype=torch.float64)


def our_parameters(view: list[dict]) -> Tensor:
    by_name = {step['type']: step for step in view}
    jitter, blur = by_name['ColorJitter'], by_name['GaussianBlur']
    strengths = [jitter[name] for name in ('brightness', 'contrast', 'saturation', 'hue')]
    solarize = by_name.get('Solarize', dict(p=0.0))['p']
    values = [
        by_name['RandomResizedCrop']['scale'][0],
        jitter['p'],
        *strengths,
        by_name['RandomGrayscale']['p'],
    ]
    return torch.tensor(
        [*values, blur['p'], *blur['sigma'], by_name['RandomFlip']['p'], solarize],
        dtype=torch.float64,
    )


VIEWS = {
    "MoCo v2's view": (
        'MoCoV2Transform',
        'mocov2.py',
        'mocov2_view',
        'flips before the color operations, not after them',
    ),
    "BYOL's first view": ('BYOLView1Transform', 'byol.py', 'first_view', ''),
    "BYOL's second view": ('BYOLView2Transform', 'byol.py', 'second_view', ''),
}


def add_view(what: str, theirs: str, file: str, ours: str, factor: str) -> None:
    def compare() -> Outcome:
        installed('lightly')
        kind = getattr(importlib.import_module('lightly.transforms.byol_transform'), theirs, None)
        transform = (
            kind()
            if kind
            else importlib.import_module('lightly.transforms.moco_transform').MoCoV2Transform()
        )
        steps = (
            transform.transforms[0] if hasattr(transform, 'transforms') else transform
        ).transform.transforms
        view = Config.fromfile(config_path(f'mmairl::_base_/views/{file}'))[ours]
        return (
            our_parameters(view),
            drawn_parameters(steps),
            '; '.join(filter(None, [factor, PILLOW])),
        )

    compares('lightly', f'{what}: 12 parameters')(compare)


PILLOW = "blurs by Pillow's approximation"
for title, words in VIEWS.items():
    add_view(title, *words)


def rows() -> list[tuple[str, str, str, str]]:
    """Return the rows of the table: library, computation, result of the comparison, and hidden factors of the library."""
    table_rows = []
    for package, what, compare in COMPARISONS:
        name = PACKAGES[package]
        try:
            ours, theirs, factor = compare()
        except Exception as error:  # an unknown version of external code may raise anything
            table_rows.append(
                (name, what, 'not run', f'{type(error).__name__}: {error}'.splitlines()[0][:120])
            )
            continue
        difference = float((ours - theirs).abs().max() / ours.abs().max())
        table_rows.append((name, what, verdict(difference), factor))
    return table_rows


def verdict(difference: float) -> str:
    if difference == 0:
        return 'equal to the last bit'
    digits = -math.log10(difference)
    return (
        f'equal to {math.floor(digits)} digits'
        if digits >= 6
        else f'{100 * difference:.2g} % apart'
    )


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return 'not installed'


def table() -> str:
    versions = ', '.join(f'{name} {version(name)}' for name in PACKAGES.values())
    lines = ['| library | computation | results | hidden factors |', '|---|---|---|---|']
    lines += ['| ' + ' | '.join(cell.replace('|', '/') for cell in row) + ' |' for row in rows()]
    return '\n'.join([f'{versions}; torch {torch.__version__}, float64 on a CPU.', '', *lines, ''])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--write', action='store_true', help='also write the table to tables.md')
    args = parser.parse_args()
    text = table()
    print(text)
    if args.write:
        TABLES.write_text(TABLE.sub(lambda _: text, TABLES.read_text()))


if __name__ == '__main__':
    main()
