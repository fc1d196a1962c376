"""NormRescale (Eq. 3): each weight of a LARS-trained network keeps its direction and takes an anchor's norm."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mmairl.errors import UserError
from mmairl.registry import WEIGHT_INITIALIZERS
from mmairl.weights.init import PretrainedBackbone
from mmairl.weights.norms import is_statistic
from mmairl.weights.read import read_backbone

STATISTICS = ('keep', 'rescale')
PER = ('tensor', 'channel')
WHOLE_NUMBERS = 'it holds whole numbers'  # such as Swin's table of positions


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
) -> tuple[dict[str, Tensor], list[Row]]:
    """Rescale every learnable tensor to the norm of the anchor's, or, without an anchor, by a constant factor.

    `per='channel'` matches the norm of each output channel. `statistics='rescale'` treats a BN layer's running mean
    and variance as weights too, as the paper's release did; counters are never touched.

    >>> new, rows = normrescale({'w': torch.tensor([3.0, 4.0])}, {'w': torch.tensor([0.0, 1.0])})
    >>> new['w'], rows[0].ratio
    (tensor([0.6000, 0.8000]), 0.2)
    """
    if (anchor is None) == (constant is None):
        raise UserError('NormRescale takes its norms from an anchor or scales by a constant: give one of the two')
    if per not in PER or statistics not in STATISTICS:
        raise UserError(f"per='{per}', statistics='{statistics}' are not NormRescale's; say {PER} and {STATISTICS}")
    new, rows = {}, []
    for key, weight in weights.items():
        new[key] = weight
        if key.endswith('num_batches_tracked') or (is_statistic(key) and statistics == 'keep'):
            continue
        if not weight.is_floating_point():
            rows.append(Row(key, 0.0, None, WHOLE_NUMBERS))
            continue
        norm, by_channel = weight.double().norm().item(), per == 'channel' and weight.ndim > 1
        if anchor is None:
            new[key] = (weight.double() * constant).to(weight.dtype)
            rows.append(Row(key, norm, norm * constant, '' if norm else 'its norm is zero'))
            continue
        why = _why_not(weight, anchor.get(key))
        rows.append(Row(key, norm, anchor[key].double().norm().item() if key in anchor else None, why))
        if not why:
            new[key] = _rescaled(weight, anchor[key], by_channel)
    return new, rows


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


def _rescaled(weight: Tensor, anchor: Tensor, by_channel: bool) -> Tensor:
    """w |a| / |w| in double precision, rounded once; a channel that is zero in either stays as it is."""
    w, a = weight.double(), anchor.double()
    if not by_channel:
        return (w * (a.norm() / w.norm())).to(weight.dtype)
    axes = tuple(range(1, w.ndim))
    of_w, of_a = (torch.linalg.vector_norm(x, dim=axes, keepdim=True) for x in (w, a))
    factor = torch.where((of_w > 0) & (of_a > 0), of_a / of_w.clamp_min(torch.finfo(torch.float64).tiny), 1.0)
    return (w * factor).to(weight.dtype)


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
    ) -> None:
        super().__init__(checkpoint, part, prefix)
        self.anchor, self.anchor_part, self.constant, self.per = anchor, anchor_part, constant, per

    def weights(self) -> tuple[dict[str, Tensor], str]:
        weights, origin = super().weights()
        anchor = read_backbone(self.anchor, self.anchor_part).weights if self.anchor else None
        rescaled, rows = normrescale(weights, anchor, self.constant, self.per)
        # A zero norm stays zero, as in a bias that was never moved; what does not fit is another network.
        if skipped := left_alone([row for row in rows if row.norm and row.anchor != 0]):
            raise UserError(
                f'NormRescale of {self.checkpoint} by {self.anchor}: {skipped}; use an anchor of the same network'
            )
        return rescaled, f'{origin}, ' + (
            f'with the norms of {self.anchor}' if anchor else f'scaled by {self.constant}'
        )
