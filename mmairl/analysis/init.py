"""NormRescale while a config's backbone is made, so that a transfer config needs no extra file."""

from torch import Tensor

from mmairl.analysis.anchors import anchor_from
from mmairl.analysis.normrescale import left_alone, normrescale
from mmairl.errors import UserError
from mmairl.registry import WEIGHT_INITIALIZERS
from mmairl.weights.init import PretrainedBackbone


@WEIGHT_INITIALIZERS.register_module()
class NormRescaled(PretrainedBackbone):
    """A LARS-trained backbone with the norms of an anchor.

    init_cfg=dict(type='NormRescaled', checkpoint='byol_lars.pth', anchor='byol_sgd.pth'), or `constant=0.1`, or
    `anchor_kind='torchvision:resnet50'`; in mmdet and mmseg the type is 'mmairl.NormRescaled'.
    """

    def __init__(
        self,
        checkpoint: str,
        anchor: str | None = None,
        anchor_kind: str | None = None,
        constant: float | None = None,
        part: str = 'student',
        anchor_part: str = 'student',
        per: str = 'tensor',
    ) -> None:
        super().__init__(checkpoint, part)
        self.anchor, self.anchor_kind, self.anchor_part = anchor, anchor_kind, anchor_part
        self.constant, self.per = constant, per

    def weights(self) -> tuple[dict[str, Tensor], str]:
        weights, origin = super().weights()
        named = self.anchor or self.anchor_kind
        anchor = anchor_from(self.anchor, self.anchor_kind, self.anchor_part).weights if named else None
        rescaled, rows = normrescale(weights, anchor, self.constant, self.per)
        # A zero norm stays zero, as in a bias that was never moved; what does not fit is another network.
        if skipped := left_alone([row for row in rows if row.norm and row.anchor != 0]):
            raise UserError(
                f'NormRescale of {self.checkpoint} by {named}: {skipped}; use an anchor of the same network'
            )
        return rescaled, f'{origin}, with the norms of {named}' if named else f'{origin}, scaled by {self.constant}'
