"""A network that starts from a checkpoint's backbone: every weight fits, or the checkpoint is refused."""

import logging
from collections.abc import Mapping
from pathlib import Path

from mmengine.logging import print_log
from torch import Tensor, nn

from mmairl.checkpoints.load import require_same_keys
from mmairl.checkpoints.norms import warning_before_fine_tuning
from mmairl.checkpoints.read import read_backbone
from mmairl.errors import UserError
from mmairl.registry import WEIGHT_INITIALIZERS


@WEIGHT_INITIALIZERS.register_module()
class PretrainedBackbone:
    """A backbone's start: where mmengine's `Pretrained` loads whatever happens to match, this loads every weight or refuses.

    `prefix` is for a module that is a single stage, such as 'layer4.' for the head of a C4 detector.
    """

    def __init__(self, checkpoint: str | None, part: str = 'student', prefix: str = '') -> None:
        if not checkpoint:
            raise UserError(
                f'no checkpoint is given for {prefix.rstrip(".") or "the backbone"}; set `checkpoint` in its init_cfg, as by '
                '--cfg-options model.backbone.init_cfg.checkpoint=CKPT'
            )
        self.checkpoint, self.part, self.prefix = checkpoint, part, prefix
        self.network: Mapping[str, Tensor] | None = None

    def weights(self) -> tuple[dict[str, Tensor], str]:
        """Return the backbone's weights, those of `self.network` if they fill it, and their origin."""
        try:
            backbone = read_backbone(self.checkpoint, self.part, network=self.network)
        except UserError as error:
            # A module of some stages, such as a C4 detector's backbone, takes its part of a whole network.
            if self.network is None or error.code not in ('other-network', 'incomplete-network'):
                raise
            backbone = read_backbone(self.checkpoint, self.part)
        return backbone.weights, str(backbone)

    def __call__(self, module: nn.Module) -> None:
        self.network = None if self.prefix else module.state_dict()
        whole, origin = self.weights()
        weights = weights_for(module, whole, self.prefix, self.checkpoint)
        module.load_state_dict(weights)
        # After any initializer but mmengine's own, networks begin some weights anew: a ViT its positions and MLPs.
        module.init_cfg = dict(type='Pretrained', checkpoint=str(self.checkpoint))
        for part in module.modules():
            part._is_init = True
        print_log(f'{self.prefix or "backbone"}: {origin}, all {len(weights)} keys matched', logger='current')
        will_learn = any(parameter.requires_grad for parameter in module.parameters())
        if will_learn and (warning := warning_before_fine_tuning(weights, origin)):
            print_log(warning, logger='current', level=logging.WARNING)


def weights_for(module: nn.Module, whole: dict[str, Tensor], prefix: str, path: str | Path) -> dict[str, Tensor]:
    """All weights of a module out of the checkpoint's tensors whose names begin with `prefix`, or an error.

    A module that ends before the last stage, as a C4 detector's backbone does, takes the stages that it has.
    """
    here = module.state_dict()
    inside = {key.removeprefix(prefix): value for key, value in whole.items() if key.startswith(prefix)}
    if not inside:
        raise UserError(f"no key of {path} starts with '{prefix}'; its keys look like {list(whole)[:3]}")
    stages = {key.split('.')[0] for key in here}
    weights = {key: value for key, value in inside.items() if key.split('.')[0] in stages}
    if not prefix:
        weights = fitted(weights, here, path)
    require_same_keys(weights, here, path)
    return weights


def fitted(weights: dict[str, Tensor], here: dict[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """The weights with RGB kernels made to fit a first convolution of C channels, as timm does.

    One channel gets their sum. More get them in turn, times 3 / C, so that a grey image has the same response.
    """
    key = next((key for key, value in here.items() if value.ndim == 4), None)
    if key is None or key not in weights or weights[key].ndim != 4:
        return weights
    kernels, wanted = weights[key], here[key].shape[1]
    there = kernels.shape[1]
    if there == wanted or kernels[:, :1].shape != here[key][:, :1].shape:
        return weights
    if there != 3:
        raise UserError(
            f'{path} was trained on images of {there} channels and the first convolution of the config takes {wanted}; set '
            f'model.backbone.in_channels={there} and channels={there} of the data sets, or give another checkpoint'
        )
    if wanted == 1:
        made, how = kernels.float().sum(1, keepdim=True), 'summed'
    else:
        made, how = kernels.float()[:, [c % 3 for c in range(wanted)]] * (3 / wanted), f'repeated, times 3/{wanted}'
    print_log(f'{key} of {path}: the RGB kernels are {how}, to take {wanted} channels', logger='current')
    return {**weights, key: made.to(kernels.dtype)}
