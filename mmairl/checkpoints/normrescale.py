"""NormRescale (Eq. 3): rescale each weight of a LARS-trained network to the norm of the same weight in an anchor network.

The paper's form also rescales gains and biases, which changes the function of the network until it is fine-tuned. The exact
form only rescales kernels that precede a batch norm, and adjusts the norm's statistics and gains so that the function stays
the same.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mmairl.checkpoints.init import PretrainedBackbone
from mmairl.checkpoints.load import first_few
from mmairl.checkpoints.norms import is_statistic
from mmairl.checkpoints.read import read_backbone
from mmairl.errors import UserError
from mmairl.registry import WEIGHT_INITIALIZERS

STATISTICS = ('keep', 'rescale')
PER = ('tensor', 'channel')
WHOLE_NUMBERS = 'it holds whole numbers'  # such as Swin's table of positions
EPSILON = 1e-5  # epsilon of torch's batch norm


@dataclass(frozen=True)
class TensorChange:
    """The change of one tensor. If it was not rescaled, `why` is the reason."""

    name: str
    norm: float
    anchor: float | None
    why: str = ''

    @property
    def ratio(self) -> float | None:
        if self.anchor is None or not self.norm or self.why:
            return None
        return self.anchor / self.norm


def normrescale(
    weights: Mapping[str, Tensor],
    anchor: Mapping[str, Tensor] | None = None,
    constant: float | None = None,
    per: str = 'tensor',
    statistics: str = 'keep',
    exact: bool = False,
) -> tuple[dict[str, Tensor], list[TensorChange]]:
    """Rescale each learned tensor to the norm of the anchor's tensor, or all tensors by a constant factor.

    Args:
        weights: Weights of the network to rescale.
        anchor: Weights of the network that provides the norms. Exclusive with `constant`.
        constant: The factor.
        per: 'tensor' matches the norm of each tensor, 'channel' the norm of each output channel.
        statistics: 'keep' does not change running means and variances; 'rescale' treats them as weights, as the paper's
            release does. Counters never change.
        exact: Whether to preserve the function of the network. Only kernels before a batch norm are then rescaled, and the
            gains and biases of batch norms whose output only enters such a kernel.

    Returns:
        The new weights, and the change of each tensor.

    Raises:
        UserError: If the options do not fit together, or if `exact` finds no kernel.

    Example:
        >>> new, rows = normrescale({'w': torch.tensor([3.0, 4.0])}, {'w': torch.tensor([0.0, 1.0])})
        >>> new['w'], rows[0].ratio
        (tensor([0.6000, 0.8000]), 0.2)
    """
    if (anchor is None) == (constant is None):
        raise UserError(
            'NormRescale: expected either an anchor or a constant; give one of them',
            code='no-anchor',
        )
    if per not in PER or statistics not in STATISTICS:
        raise UserError(
            f"NormRescale: unknown option ('{per}', '{statistics}'); expected per in {PER} and statistics in {STATISTICS}",
            code='unknown-option',
        )
    if exact:
        if statistics != 'keep':
            raise UserError(
                "NormRescale: the exact form adjusts statistics itself; leave out statistics='rescale'",
                code='exact-statistics',
            )
        return _keeping_function(weights, anchor, constant, per)
    new, rows = {}, []
    for key, weight in weights.items():
        new[key] = weight
        if key.endswith('num_batches_tracked') or (is_statistic(key) and statistics == 'keep'):
            continue
        if not weight.is_floating_point():
            rows.append(TensorChange(key, 0.0, None, WHOLE_NUMBERS))
            continue
        row, factor = _change(key, weight, (anchor or {}).get(key), constant, per)
        rows.append(row)
        new[key] = _times(weight, factor)
    return new, rows


def _keeping_function(
    weights: Mapping[str, Tensor],
    anchor: Mapping[str, Tensor] | None,
    constant: float | None,
    per: str,
) -> tuple[dict[str, Tensor], list[TensorChange]]:
    """Rescale each kernel before a batch norm, and each gain and bias whose output only enters such a kernel.

    If the input of a batch norm grows by c, its running mean grows by c and its running variance by c^2. Its gain compensates
    for the constant epsilon.
    """
    new = dict(weights)
    rows = []
    entering: dict[str, Tensor | float] = {}  # by kernel, the factor of its input
    anchor = anchor or {}
    for key, weight in weights.items():
        names = _batch_norm_after(key, weights)
        if not names:
            continue
        gain, bias, mean, variance = names
        row, factor = _change(key, weight, anchor.get(key), constant, per)
        rows.append(row)
        new[key] = _times(weight, factor)
        grown = torch.as_tensor(factor, dtype=torch.float64).flatten() * entering.get(key, 1.0)
        new[mean] = _times(weights[mean], grown)
        new[variance] = _times(weights[variance], grown**2)
        before = weights[variance].double()
        compensation = (grown**2 * before + EPSILON).sqrt() / (grown * (before + EPSILON).sqrt())
        new[gain] = _times(weights[gain], compensation)
        following = _next_kernel(key)
        if following in weights:
            affine = _joined(weights, gain, bias)
            row, factor = _change(
                f'{gain} and {bias}', affine, _joined(anchor, gain, bias), constant, per
            )
            rows.append(row)
            entering[following] = factor
            new[gain] = _times(new[gain], factor)
            new[bias] = _times(weights[bias], factor)
    if not rows:
        raise UserError(
            'NormRescale: the exact form requires a ResNet whose convolutions are followed by batch norms; leave out `exact`',
            code='no-exact-kernel',
        )
    return new, rows


def _joined(weights: Mapping[str, Tensor], gain: str, bias: str) -> Tensor | None:
    """Return the gain and bias of a batch norm as one tensor, or None if one is missing."""
    if gain not in weights or bias not in weights:
        return None
    return torch.cat([weights[gain], weights[bias]])


def _change(
    name: str, weight: Tensor, other: Tensor | None, constant: float | None, per: str
) -> tuple[TensorChange, Tensor | float]:
    """Return the change of a tensor, and its factor."""
    norm = weight.double().norm().item()
    if constant is not None:
        why = '' if norm else 'its norm is zero'
        return TensorChange(name, norm, norm * constant, why), constant
    why = _why_not(weight, other)
    target = None if other is None else other.double().norm().item()
    return TensorChange(name, norm, target, why), 1.0 if why else _factor(weight, other, per)


def _batch_norm_after(kernel: str, weights: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the names of gain, bias, mean and variance of the batch norm after a ResNet's kernel; () without a norm."""
    norm = re.sub(r'downsample\.0\.weight$', 'downsample.1', kernel)
    norm = re.sub(r'conv(\d+)\.weight$', r'bn\1', norm)
    names = tuple(f'{norm}.{name}' for name in ('weight', 'bias', 'running_mean', 'running_var'))
    return names if norm != kernel and all(name in weights for name in names) else ()


def _next_kernel(kernel: str) -> str:
    """Return the name of the next kernel within a block of a ResNet; '' for a kernel outside the blocks."""
    following, count = re.subn(r'(?<=\.conv)\d+', lambda number: str(int(number[0]) + 1), kernel)
    return following if count else ''


def _why_not(weight: Tensor, anchor: Tensor | None) -> str:
    if anchor is None:
        return 'the anchor lacks it'
    if anchor.shape != weight.shape:
        return f"its shape {tuple(weight.shape)} differs from the anchor's {tuple(anchor.shape)}"
    if not weight.isfinite().all() or not anchor.isfinite().all():
        return 'it or the anchor is not finite'
    if not weight.any():
        return 'its norm is zero'
    return '' if anchor.any() else "the anchor's norm is zero"


def _factor(weight: Tensor, anchor: Tensor, per: str) -> Tensor:
    """Return |a| / |w| in float64, for the tensor or for each output channel; 1 for channels that are zero in either."""
    w = weight.double()
    a = anchor.double()
    if per == 'tensor' or w.ndim < 2:
        return a.norm() / w.norm()
    axes = tuple(range(1, w.ndim))
    of_w = torch.linalg.vector_norm(w, dim=axes, keepdim=True)
    of_a = torch.linalg.vector_norm(a, dim=axes, keepdim=True)
    ratio = of_a / of_w.clamp_min(torch.finfo(torch.float64).tiny)
    return torch.where((of_w > 0) & (of_a > 0), ratio, 1.0)


def _times(weight: Tensor, factor: Tensor | float) -> Tensor:
    """Multiply in float64 and round once."""
    return (weight.double() * factor).to(weight.dtype)


def left_alone(rows: list[TensorChange]) -> str:
    """Return a message about the tensors that could not be rescaled, or ''."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.why:
            reasons.setdefault(row.why, []).append(row.name)
    if not reasons:
        return ''
    skipped = sum(map(len, reasons.values()))
    parts = '; '.join(f'{why}: {first_few(names)}' for why, names in reasons.items())
    return f'{skipped} of {len(rows)} tensors were left as they were ({parts})'


@WEIGHT_INITIALIZERS.register_module()
class NormRescaled(PretrainedBackbone):
    """Initialize a backbone from a LARS-trained checkpoint, rescaled to the norms of an anchor.

    For example ``init_cfg=dict(type='NormRescaled', checkpoint='byol_lars.pth', anchor='byol_sgd.pth')``. In mmdet and
    mmseg, the type is ``'mmairl.NormRescaled'``.

    Args:
        checkpoint: The LARS-trained checkpoint.
        anchor: The checkpoint with the norms, or a released model such as 'torchvision:resnet50'.
        constant: A factor to use instead of an anchor.
        part: 'student' or 'teacher' of the checkpoint. Default: 'student'.
        anchor_part: 'student' or 'teacher' of the anchor. Default: 'student'.
        per: 'tensor' or 'channel'. Default: 'tensor'.
        prefix: Prefix of the keys to load, for a module that is a single stage. Default: load the whole backbone.
        exact: Whether to preserve the function of the network. Default: False.

    Raises:
        UserError: If a tensor cannot be rescaled.
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
        self.anchor = anchor
        self.anchor_part = anchor_part
        self.constant = constant
        self.options = dict(per=per, exact=exact)

    def weights(self) -> tuple[dict[str, Tensor], str]:
        weights, origin = super().weights()
        anchor = read_backbone(self.anchor, self.anchor_part).weights if self.anchor else None
        rescaled, rows = normrescale(weights, anchor, self.constant, **self.options)
        # A tensor that is zero in either network, such as an untrained bias, stays as it is. Any other skipped tensor means
        # that the anchor is another network.
        if skipped := left_alone([row for row in rows if row.norm and row.anchor != 0]):
            raise UserError(
                f'NormRescale: {self.anchor} does not fit {self.checkpoint} ({skipped}); use an anchor of the same network',
                code='other-anchor',
            )
        change = f'with the norms of {self.anchor}' if anchor else f'scaled by {self.constant}'
        return rescaled, f'{origin}, {change}'
