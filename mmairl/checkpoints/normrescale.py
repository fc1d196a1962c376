"""NormRescale: rescale each weight of a LARS-trained network to the norm of the same weight in an anchor network.

NormRescale is Eq. 3 of the ECCV 2022 paper that README.md cites. The paper's form rescales all weights, including gains and
biases. This changes the features that the network computes before it is fine-tuned. The exact form only rescales weights
that precede a batch norm, and adjusts the statistics and gains of the batch norm, so that the features stay the same.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mmairl.checkpoints.init import PretrainedBackbone
from mmairl.checkpoints.load import first_few, load_checkpoint, warn
from mmairl.checkpoints.norms import is_statistic, looks_lars_trained
from mmairl.checkpoints.pickles import ORIGIN, write_checkpoint
from mmairl.checkpoints.read import read_backbone
from mmairl.errors import UserError
from mmairl.io import output
from mmairl.registry import WEIGHT_INITIALIZERS

STATISTICS = ('keep', 'rescale')
PER = ('tensor', 'channel')
# This is the reason given for a tensor of whole numbers, such as Swin's table of positions, which cannot be rescaled.
WHOLE_NUMBERS = 'whole numbers'
# This is the epsilon of torch's batch norm.
EPSILON = 1e-5
# Entries of a checkpoint's `meta` that describe its weights. They are copied to the rescaled checkpoint.
KEPT_META = ('cfg', 'settings', 'epoch', 'iter', 'dataset_meta', 'mmairl_version')


@dataclass(frozen=True)
class TensorChange:
    """How one tensor was rescaled.

    Attributes:
        name: Key of the tensor.
        norm: Norm of the tensor before the change.
        anchor: Norm to which the tensor is rescaled, or None if it is unknown.
        why: The reason why the tensor was not rescaled. Empty if the tensor was rescaled.
    """

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
    """Rescale each learned tensor to the norm of the same tensor in an anchor, or multiply it by a constant.

    Args:
        weights: Weights of the network to rescale.
        anchor: Weights of the network whose norms are used. Give either an anchor or a constant.
        constant: Factor by which each learned tensor is multiplied.
        per: 'tensor' matches the norm of each tensor, and 'channel' matches the norm of each output channel.
        statistics: 'keep' does not change running means and variances. 'rescale' rescales them like weights, as the paper's
            release does. The counters of batches never change.
        exact: Whether the network must compute the same features as before. If so, only two kinds of tensors are rescaled:
            kernels whose output enters a batch norm, and gains and biases of batch norms whose output enters only such kernels.

    Returns:
        The new weights, and a list with the change of each tensor.

    Raises:
        UserError: If the options contradict each other, or if `exact` is set and no kernel is followed by a batch norm.

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
            f"NormRescale: unknown option ('per={per}, statistics={statistics}'); expected per in {PER} and statistics in "
            f'{STATISTICS}',
            code='unknown-option',
        )
    if exact:
        if statistics != 'keep':
            raise UserError(
                "NormRescale: the exact form always adjusts the running statistics; leave out statistics='rescale'",
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
    """Rescale a ResNet so that it computes the same features as before.

    Each kernel whose output enters a batch norm is rescaled. The gain and bias of a batch norm are rescaled, too, if its output
    enters only such kernels. Multiplying a kernel by c also multiplies the input of its batch norm by c. Therefore the running
    mean is multiplied by c and the running variance by c^2. The gain is corrected, because the batch norm's epsilon stays the
    same.
    """
    new = dict(weights)
    rows = []
    # Maps the name of a kernel to the factor by which its input was multiplied.
    entering: dict[str, Tensor | float] = {}
    # Maps the name of a kernel to the change of the gain and bias after it.
    affine_rows: dict[str, TensorChange] = {}
    anchor = anchor or {}
    # The first loop finds all factors, because a file may list a kernel before the kernel that precedes it in the network.
    for key in weights:
        names = _batch_norm_after(key, weights)
        following = _next_kernel(key)
        if names and following in weights:
            gain, bias, *_ = names
            affine_rows[key], entering[following] = _change(
                f'{gain} and {bias}',
                _joined(weights, gain, bias),
                _joined(anchor, gain, bias),
                constant,
                per,
            )
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
        if key in affine_rows:
            rows.append(affine_rows[key])
            factor = entering[_next_kernel(key)]
            new[gain] = _times(new[gain], factor)
            new[bias] = _times(weights[bias], factor)
    if not rows:
        raise UserError(
            'NormRescale: the exact form requires a ResNet whose convolutions are followed by batch norms; leave out `exact`',
            code='no-exact-kernel',
        )
    return new, rows


def _joined(weights: Mapping[str, Tensor], gain: str, bias: str) -> Tensor | None:
    """Concatenate the gain and the bias of a batch norm. Return None if either is missing."""
    if gain not in weights or bias not in weights:
        return None
    return torch.cat([weights[gain], weights[bias]])


def _change(
    name: str, weight: Tensor, other: Tensor | None, constant: float | None, per: str
) -> tuple[TensorChange, Tensor | float]:
    """Return the change of a tensor, and the factor by which to multiply it."""
    norm = weight.double().norm().item()
    if constant is not None:
        why = '' if norm else 'zero norm'
        return TensorChange(name, norm, norm * constant, why), constant
    why = _why_not(weight, other)
    target = None if other is None else other.double().norm().item()
    return TensorChange(name, norm, target, why), 1.0 if why else _factor(weight, other, per)


def _batch_norm_after(kernel: str, weights: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the names of gain, bias, mean and variance of the batch norm that follows a ResNet's kernel.

    The result is empty if no batch norm follows.
    """
    norm = re.sub(r'downsample\.0\.weight$', 'downsample.1', kernel)
    norm = re.sub(r'conv(\d+)\.weight$', r'bn\1', norm)
    names = tuple(f'{norm}.{name}' for name in ('weight', 'bias', 'running_mean', 'running_var'))
    return names if norm != kernel and all(name in weights for name in names) else ()


def _next_kernel(kernel: str) -> str:
    """Return the name of the convolution that follows a kernel in the same block of a ResNet.

    If the kernel is the last convolution of its block, no tensor has the returned name. The result is '' for the stem and
    for the projection of a shortcut.
    """
    following, count = re.subn(r'(?<=\.conv)\d+', lambda number: str(int(number[0]) + 1), kernel)
    return following if count else ''


def _why_not(weight: Tensor, anchor: Tensor | None) -> str:
    if anchor is None:
        return 'not in the anchor'
    if anchor.shape != weight.shape:
        return f"shape {tuple(weight.shape)} differs from the anchor's {tuple(anchor.shape)}"
    if not weight.isfinite().all() or not anchor.isfinite().all():
        return 'values of the tensor or of the anchor not finite'
    if not weight.any():
        return 'zero norm'
    return '' if anchor.any() else 'zero norm in the anchor'


def _factor(weight: Tensor, anchor: Tensor, per: str) -> Tensor:
    """Return the anchor's norm divided by the weight's norm, for the whole tensor or for each output channel.

    The factor of a channel is 1 if the channel is zero in either tensor. Norms are computed in float64.
    """
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
    """Return a message about the tensors that could not be rescaled, or '' if all were rescaled."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.why:
            reasons.setdefault(row.why, []).append(row.name)
    if not reasons:
        return ''
    skipped = sum(map(len, reasons.values()))
    parts = '; '.join(f'{why}: {first_few(names)}' for why, names in reasons.items())
    return f'{skipped} of {len(rows)} tensors were not rescaled ({parts})'


def rescale_checkpoint(
    lars: str,
    out: str | Path,
    anchor: str | None = None,
    constant: float | None = None,
    part: str = 'student',
    anchor_part: str = 'student',
) -> list[TensorChange]:
    """Rescale the backbone in a checkpoint, and write the result to a file that contains only weights.

    If the backbone is the student of a training checkpoint of mmairl or OpenMMLab, the weights of the checkpoint's other
    networks are copied, too.

    Args:
        lars: The checkpoint of the LARS-trained network, in any known format.
        out: The file to write.
        anchor: The checkpoint whose norms are used, or the name of a released model such as 'torchvision:resnet50'.
        constant: Factor by which all weights are multiplied if there is no anchor.
        part: 'student' or 'teacher' of `lars`.
        anchor_part: 'student' or 'teacher' of `anchor`.

    Returns:
        The change of each learned tensor.

    Raises:
        UserError: 'rescaled-twice' if the checkpoint is already rescaled, 'nothing-rescaled' if no tensor can be rescaled.
    """
    output(out, lars, anchor)
    source = read_backbone(lars, part)
    if constant and 'normrescale' in source.origin:
        raise UserError(
            f"{lars}: the checkpoint is already rescaled ('{source.origin['normrescale']}'); rescale the original checkpoint",
            code='rescaled-twice',
        )
    target = read_backbone(anchor, anchor_part) if anchor else None
    weights, rows = normrescale(source.weights, target and target.weights, constant)
    skipped = left_alone(rows)
    if all(row.why for row in rows):
        raise UserError(
            f'{lars}: no tensor can be rescaled ({skipped}); use an anchor of the same network',
            code='nothing-rescaled',
        )
    if skipped:
        warn(f'{lars}: {skipped}')
    if not looks_lars_trained(source.weights):
        warn(f'{lars}: does not look LARS-trained')
    record = {**source.record, 'normrescale': str(target or f'constant {constant}')}
    state = {f'backbone.{key}': value for key, value in weights.items()}
    meta = {ORIGIN: record}
    if source.source.startswith('mmairl') and part == 'student':
        loaded = load_checkpoint(lars)
        state = {**loaded.get('state_dict', {}), **state}
        stored = loaded.get('meta', {})
        meta |= {key: stored[key] for key in KEPT_META if key in stored}
    write_checkpoint(dict(meta=meta, state_dict=state), out)
    return rows


@WEIGHT_INITIALIZERS.register_module()
class NormRescaled(PretrainedBackbone):
    """Initialize a backbone from a LARS-trained checkpoint whose weights are rescaled to the norms of an anchor.

    An example is ``init_cfg=dict(type='NormRescaled', checkpoint='byol_lars.pth', anchor='byol_sgd.pth')``. In configs of
    mmdet and mmseg, the type is ``'mmairl.NormRescaled'``.

    Args:
        checkpoint: The LARS-trained checkpoint.
        anchor: The checkpoint whose norms are used, or the name of a released model such as 'torchvision:resnet50'.
        constant: Factor by which all weights are multiplied if there is no anchor.
        part: Which backbone of the checkpoint to load, 'student' or 'teacher'. Default: 'student'.
        anchor_part: Which backbone of the anchor to use, 'student' or 'teacher'. Default: 'student'.
        per: Whether to match the norm of each 'tensor' or of each output 'channel'. Default: 'tensor'.
        prefix: Prefix of the keys to load, if the module is a single stage of the backbone. Default: load the whole backbone.
        exact: Whether the network must compute the same features as before. Default: False.

    Raises:
        UserError: If the anchor does not fit the checkpoint, or the options contradict each other.
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
        anchor = self.read(self.anchor, self.anchor_part).weights if self.anchor else None
        rescaled, rows = normrescale(weights, anchor, self.constant, **self.options)
        # A tensor that is zero in either network, such as an untrained bias, and a tensor of whole numbers are left
        # unchanged. If any other tensor was not rescaled, the anchor does not fit the checkpoint.
        if skipped := left_alone([row for row in rows if row.norm and row.anchor != 0]):
            raise UserError(
                f'NormRescale: {self.anchor} does not fit {self.checkpoint} ({skipped}); use an anchor of the same network',
                code='other-anchor',
            )
        change = f'with the norms of {self.anchor}' if anchor else f'scaled by {self.constant}'
        return rescaled, f'{origin}, {change}'
