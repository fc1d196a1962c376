"""NormRescale while a config's backbone is made, so that a transfer config needs no extra file."""

from torch import Tensor

from mmairl.analysis.normrescale import left_alone, normrescale
from mmairl.errors import UserError
from mmairl.registry import WEIGHT_INITIALIZERS
from mmairl.weights.init import PretrainedBackbone
from mmairl.weights.read import read_backbone


@WEIGHT_INITIALIZERS.register_module()
class NormRescaled(PretrainedBackbone):
    """A LARS-trained backbone with the norms of an anchor.

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
