"""NormRescale (Eq. 3): each weight of a LARS-trained network keeps its direction and takes an anchor's norm.

The paper's form rescales gains and biases as well, so that the network computes something else until it is trained. The
exact form rescales what batch norm makes free of scale, and moves statistics and gains so that the function stays.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mmairl.checkpoints.init import PretrainedBackbone
from mmairl.checkpoints.norms import is_statistic
from mmairl.checkpoints.read import read_backbone
from mmairl.errors import UserError
from mmairl.registry import WEIGHT_INITIALIZERS

STATISTICS = ('keep', 'rescale')
PER = ('tensor', 'channel')
WHOLE_NUMBERS = 'it holds whole numbers'  # such as Swin's table of positions
EPSILON = 1e-5  # of batch norm, in torch and in what trains by it


@dataclass(frozen=True)
class Row:
    """The change of one tensor; `why` says what kept it as it was."""

    name: str
    norm: float
    anchor: float | None
    why: str = ''

    @property
    def ratio(self) -> float | None:
        return self.anchor / self.norm if self.anchor is not None and self.norm and not self.why else None


def normrescale(
    weights: Mapping[str, Tensor],
    anchor: Mapping[str, Tensor] | None = None,
    constant: float | None = None,
    per: str = 'tensor',
    statistics: str = 'keep',
    exact: bool = False,
) -> tuple[dict[str, Tensor], list[Row]]:
    """Rescale every learnable tensor to the norm of the anchor's, or, without an anchor, by a constant factor.

    `per='channel'` matches the norm of each output channel. `statistics='rescale'` treats a BN layer's running mean
    and variance as weights too, as the paper's release did; counters are never touched. With `exact` the network
    computes what it did: kernels before a batch norm are rescaled, and its gains as far as another one follows.

    >>> new, rows = normrescale({'w': torch.tensor([3.0, 4.0])}, {'w': torch.tensor([0.0, 1.0])})
    >>> new['w'], rows[0].ratio
    (tensor([0.6000, 0.8000]), 0.2)
    """
    if (anchor is None) == (constant is None):
        raise UserError('NormRescale takes its norms from an anchor or scales by a constant: give one of the two')
    if per not in PER or statistics not in STATISTICS:
        raise UserError(f"per='{per}', statistics='{statistics}' are not NormRescale's; say {PER} and {STATISTICS}")
    if exact:
        if statistics != 'keep':
            raise UserError("the exact form moves the statistics itself; leave out statistics='rescale'")
        return _keeping_function(weights, anchor, constant, per)
    new, rows = {}, []
    for key, weight in weights.items():
        new[key] = weight
        if key.endswith('num_batches_tracked') or (is_statistic(key) and statistics == 'keep'):
            continue
        if not weight.is_floating_point():
            rows.append(Row(key, 0.0, None, WHOLE_NUMBERS))
            continue
        row, factor = _change(key, weight, (anchor or {}).get(key), constant, per)
        rows.append(row)
        new[key] = _times(weight, factor)
    return new, rows


def _keeping_function(
    weights: Mapping[str, Tensor], anchor: Mapping[str, Tensor] | None, constant: float | None, per: str
) -> tuple[dict[str, Tensor], list[Row]]:
    """Rescale each kernel that batch norm follows, and each gain with its bias of which only such a kernel hears.

    A batch norm whose input is c times as large has c and c^2 times the statistics; its gain makes up for epsilon.
    """
    new, rows, entering, anchor = dict(weights), [], {}, anchor or {}
    for key, weight in weights.items():
        if not (names := _batch_norm_after(key, weights)):
            continue
        gain, bias, mean, variance = names
        row, factor = _change(key, weight, anchor.get(key), constant, per)
        rows.append(row)
        new[key] = _times(weight, factor)
        grown = torch.as_tensor(factor, dtype=torch.float64).flatten() * entering.get(key, 1.0)
        new[mean], new[variance] = _times(weights[mean], grown), _times(weights[variance], grown**2)
        was = weights[variance].double()
        kept = (grown**2 * was + EPSILON).sqrt() / (grown * (was + EPSILON).sqrt())
        new[gain] = _times(weights[gain], kept)
        if (following := _next_kernel(key)) in weights:
            both, other = (
                torch.cat([net[gain], net[bias]]) if {gain, bias} <= net.keys() else None for net in (weights, anchor)
            )
            row, entering[following] = _change(f'{gain} and {bias}', both, other, constant, per)
            rows.append(row)
            new[gain], new[bias] = (_times(tensor, entering[following]) for tensor in (new[gain], weights[bias]))
    if not rows:
        raise UserError("the exact form is for kernels that batch norm follows, by a ResNet's names; leave out `exact`")
    return new, rows


def _change(
    name: str, weight: Tensor, other: Tensor | None, constant: float | None, per: str
) -> tuple[Row, Tensor | float]:
    """Return what becomes of a tensor, and the factor that makes it so."""
    norm = weight.double().norm().item()
    if constant is not None:
        return Row(name, norm, norm * constant, '' if norm else 'its norm is zero'), constant
    why = _why_not(weight, other)
    row = Row(name, norm, None if other is None else other.double().norm().item(), why)
    return row, 1.0 if why else _factor(weight, other, per)


def _batch_norm_after(kernel: str, weights: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return gain, bias, mean and variance of the batch norm that a ResNet has after a kernel; nothing after another."""
    norm = re.sub(r'conv(\d+)\.weight$', r'bn\1', re.sub(r'downsample\.0\.weight$', 'downsample.1', kernel))
    names = tuple(f'{norm}.{name}' for name in ('weight', 'bias', 'running_mean', 'running_var'))
    return names if norm != kernel and all(name in weights for name in names) else ()


def _next_kernel(kernel: str) -> str:
    """Return the name of the kernel that alone hears of this one's batch norm, within a block of a ResNet."""
    return re.sub(r'(?<=\.conv)\d+', lambda number: str(int(number[0]) + 1), kernel) if '.conv' in kernel else ''


def _why_not(weight: Tensor, anchor: Tensor | None) -> str:
    if anchor is None:
        return 'the anchor lacks it'
    if anchor.shape != weight.shape:
        return f'its shape {tuple(weight.shape)} differs from the anchor’s {tuple(anchor.shape)}'
    if not weight.isfinite().all() or not anchor.isfinite().all():
        return 'it or the anchor is not finite'
    if not weight.any():
        return 'its norm is zero'
    return '' if anchor.any() else 'the anchor’s norm is zero'


def _factor(weight: Tensor, anchor: Tensor, per: str) -> Tensor:
    """|a| / |w| in double precision, of the tensor or of each output channel; one that is zero in either stays as it is."""
    w, a = weight.double(), anchor.double()
    if per == 'tensor' or w.ndim < 2:
        return a.norm() / w.norm()
    axes = tuple(range(1, w.ndim))
    of_w, of_a = (torch.linalg.vector_norm(x, dim=axes, keepdim=True) for x in (w, a))
    return torch.where((of_w > 0) & (of_a > 0), of_a / of_w.clamp_min(torch.finfo(torch.float64).tiny), 1.0)


def _times(weight: Tensor, factor: Tensor | float) -> Tensor:
    """Multiply in double precision, rounded once."""
    return (weight.double() * factor).to(weight.dtype)


def left_alone(rows: list[Row]) -> str:
    """One sentence on the tensors that could not be rescaled, or nothing."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.why:
            reasons.setdefault(row.why, []).append(row.name)
    said = [f'{why}: {keys[0]}' + (f' and {len(keys) - 1} more' if keys[1:] else '') for why, keys in reasons.items()]
    skipped = sum(map(len, reasons.values()))
    return f'{skipped} of {len(rows)} tensors were left as they were ({"; ".join(said)})' if skipped else ''


@WEIGHT_INITIALIZERS.register_module()
class NormRescaled(PretrainedBackbone):
    """A LARS-trained backbone with the norms of an anchor, made while a network is, so that a config needs no extra file.

    init_cfg=dict(type='NormRescaled', checkpoint='byol_lars.pth', anchor='byol_sgd.pth'), or `constant=0.1`; the
    anchor may be a released model such as 'torchvision:resnet50'. In mmdet and mmseg the type is 'mmairl.NormRescaled'.
    """

    def __init__(
        self,
        checkpoint: str,
        anchor: str | None = None,
        constant: float | None = None,
        part: str = 'student',
        anchor_part: str = 'student',
        per: str = 'tensor',
        prefix: str = '',
        exact: bool = False,
    ) -> None:
        super().__init__(checkpoint, part, prefix)
        self.anchor, self.anchor_part, self.constant, self.how = (
            anchor,
            anchor_part,
            constant,
            dict(per=per, exact=exact),
        )

    def weights(self) -> tuple[dict[str, Tensor], str]:
        weights, origin = super().weights()
        anchor = read_backbone(self.anchor, self.anchor_part).weights if self.anchor else None
        rescaled, rows = normrescale(weights, anchor, self.constant, **self.how)
        # A zero norm stays zero, as in a bias that was never moved; what does not fit is another network.
        if skipped := left_alone([row for row in rows if row.norm and row.anchor != 0]):
            raise UserError(
                f'NormRescale of {self.checkpoint} by {self.anchor}: {skipped}; use an anchor of the same network'
            )
        return rescaled, f'{origin}, ' + (
            f'with the norms of {self.anchor}' if anchor else f'scaled by {self.constant}'
        )
