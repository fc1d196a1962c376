"""NormRescale: rescale each weight of a LARS-trained network to the norm of the same weight in an anchor network.

NormRescale is Eq. 3 of the ECCV 2022 paper that README.md cites. It rescales all learned tensors, including gains and biases,
so batch norm's running statistics must be measured again before the network is used in eval mode.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from mmairl.checkpoints.init import PretrainedBackbone
from mmairl.checkpoints.load import first_few, warn
from mmairl.checkpoints.norms import is_statistic
from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.write import write_backbone
from mmairl.errors import UserError
from mmairl.io import output
from mmairl.registry import WEIGHT_INITIALIZERS


class TensorChange(NamedTuple):
    """How one tensor was rescaled.

    Attributes:
        name: Key of the tensor.
        norm: Norm of the tensor before the change.
        anchor: Norm to which the tensor is rescaled, or None if the anchor lacks the tensor.
        why: The reason why the tensor was not rescaled. Empty if the tensor was rescaled.
    """

    name: str
    norm: float
    anchor: float | None
    why: str = ''


def normrescale(
    weights: Mapping[str, Tensor],
    anchor: Mapping[str, Tensor] | None = None,
    constant: float | None = None,
) -> tuple[dict[str, Tensor], list[TensorChange]]:
    """Rescale each learned tensor to the norm of the same tensor in an anchor, or multiply it by a constant.

    Args:
        weights: Weights of the network to rescale.
        anchor: Weights of the network whose norms are used. Give either an anchor or a constant.
        constant: Factor by which each learned tensor is multiplied.

    Returns:
        The new weights, and a list with the change of each learned tensor. Norms are computed in float64.

    Raises:
        UserError: 'no-anchor' unless exactly one of `anchor` and `constant` is given.

    Example:
        >>> new, rows = normrescale({'w': torch.tensor([3.0, 4.0])}, {'w': torch.tensor([0.0, 1.0])})
        >>> new['w'], rows[0].norm
        (tensor([0.6000, 0.8000]), 5.0)
    """
    if (anchor is None) == (constant is None):
        raise UserError(
            'NormRescale: expected either an anchor or a constant; give one of them',
            code='no-anchor',
        )
    new, rows = dict(weights), []
    for key, weight in weights.items():
        if is_statistic(key) or not weight.is_floating_point():
            continue
        norm = weight.double().norm().item()
        fitting = weight if anchor is None else anchor.get(key)
        target, why = None, ''
        if fitting is None or fitting.shape != weight.shape:
            why = 'not in the anchor with this shape'
        else:
            target = (constant or 1) * fitting.double().norm().item()
            if not (0 < norm < inf and 0 < target < inf):
                why = 'a norm is zero or not finite'
        if not why:
            new[key] = (weight.double() * (constant or target / norm)).to(weight.dtype)
        rows.append(TensorChange(key, norm, target, why))
    return new, rows


def left_alone(rows: list[TensorChange]) -> str:
    """Return a message about the tensors that could not be rescaled, or '' if all were rescaled."""
    skipped = [f'{row.name}: {row.why}' for row in rows if row.why]
    if not skipped:
        return ''
    return f'{len(skipped)} of {len(rows)} tensors were not rescaled ({first_few(skipped)})'


def rescale_checkpoint(
    lars: str,
    out: str | Path,
    anchor: str | None = None,
    constant: float | None = None,
    part: str = 'student',
) -> list[TensorChange]:
    """Rescale the backbone in a checkpoint, and write the result to a file that contains only the backbone.

    Args:
        lars: The checkpoint of the LARS-trained network, in any known format.
        out: The file to write.
        anchor: The checkpoint whose norms are used, or the name of a released model such as 'torchvision:resnet50'.
        constant: Factor by which all weights are multiplied if there is no anchor.
        part: 'student' or 'teacher' of `lars`.

    Returns:
        The change of each learned tensor.

    Raises:
        UserError: 'nothing-rescaled' if no tensor can be rescaled.
    """
    output(out, lars, anchor)
    source = read_backbone(lars, part)
    target = read_backbone(anchor, network=source.weights) if anchor else None
    weights, rows = normrescale(source.weights, target and target.weights, constant)
    skipped = left_alone(rows)
    if all(row.why for row in rows):
        raise UserError(
            f'{lars}: no tensor can be rescaled ({skipped}); use an anchor of the same network',
            code='nothing-rescaled',
        )
    if skipped:
        warn(f'{lars}: {skipped}')
    how = str(target or f'constant {constant}')
    write_backbone(replace(source, weights=weights), out, normrescale=how)
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
        prefix: Prefix of the keys to load, if the module is a single stage of the backbone. Default: load the whole backbone.

    Raises:
        UserError: If the anchor does not fit the checkpoint, or unless exactly one of `anchor` and `constant` is set.
    """

    def __init__(
        self,
        checkpoint: str,
        anchor: str | None = None,
        constant: float | None = None,
        part: str = 'student',
        prefix: str = '',
    ) -> None:
        super().__init__(checkpoint, part, prefix)
        self.anchor = anchor
        self.constant = constant

    def weights(self) -> tuple[dict[str, Tensor], str]:
        weights, origin = super().weights()
        anchor = self.anchor and read_backbone(self.anchor, network=self.network).weights
        rescaled, rows = normrescale(weights, anchor, self.constant)
        # A tensor that is zero in either network, such as an untrained bias, is left unchanged. If any other tensor was not
        # rescaled, the anchor does not fit the checkpoint.
        if skipped := left_alone([row for row in rows if row.norm and row.anchor != 0]):
            raise UserError(
                f"NormRescale: the anchor ('{self.anchor}') does not fit {self.checkpoint} ({skipped}); use an anchor of the "
                'same network',
                code='other-anchor',
            )
        change = f'with the norms of {self.anchor}' if anchor else f'scaled by {self.constant}'
        return rescaled, f'{origin}, {change}'
