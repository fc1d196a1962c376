"""Initialize a network from a checkpoint's backbone. A weight that does not fit raises an error."""

from collections.abc import Mapping
from pathlib import Path

from mmengine.logging import print_log
from torch import Tensor, nn

from mmairl.checkpoints.load import require_same_keys, warn
from mmairl.checkpoints.norms import looks_lars_trained, typical_growth
from mmairl.checkpoints.read import read_backbone
from mmairl.errors import UserError
from mmairl.registry import WEIGHT_INITIALIZERS


@WEIGHT_INITIALIZERS.register_module()
class PretrainedBackbone:
    """Initialize a backbone from a checkpoint of any known project.

    mmengine's ``Pretrained`` skips weights that do not match. This initializer loads every weight or raises an error.

    Args:
        checkpoint: The checkpoint.
        part: 'student' or 'teacher'. Default: 'student'.
        prefix: Prefix of the keys to load, if the module is a single stage of the backbone. For example, the prefix
            for the head of a C4 detector is ``'layer4.'``. Default: load the whole backbone.

    Raises:
        UserError: If there is no checkpoint, or if its weights are not exactly those of the module.
    """

    def __init__(self, checkpoint: str | None, part: str = 'student', prefix: str = '') -> None:
        if not checkpoint:
            raise UserError(
                f'init_cfg: {prefix.rstrip(".") or "the backbone"} has no checkpoint; set `checkpoint`, for example by '
                '--cfg-options model.backbone.init_cfg.checkpoint=CKPT',
                code='no-checkpoint',
            )
        self.checkpoint = checkpoint
        self.part = part
        self.prefix = prefix
        self.network: Mapping[str, Tensor] | None = None

    def weights(self) -> tuple[dict[str, Tensor], str]:
        """Return the backbone's weights, and a text that states where they come from."""
        # The tensors of the module identify a network of any kind.
        backbone = read_backbone(self.checkpoint, self.part, network=self.network)
        return backbone.weights, str(backbone)

    def __call__(self, module: nn.Module) -> None:
        self.network = None if self.prefix else module.state_dict()
        whole, origin = self.weights()
        weights = weights_for(module, whole, self.prefix, self.checkpoint)
        module.load_state_dict(weights)
        # Networks reset some weights after initialization, such as a ViT's position embeddings and MLPs, unless their
        # `init_cfg` is mmengine's own `Pretrained`. Therefore, `init_cfg` is replaced by one of this type.
        module.init_cfg = dict(type='Pretrained', checkpoint=str(self.checkpoint))
        for part in module.modules():
            part._is_init = True
        print_log(
            f'{self.prefix or "backbone"}: {origin}, all {len(weights)} keys matched',
            logger='current',
        )
        is_trained = any(parameter.requires_grad for parameter in module.parameters())
        if is_trained and looks_lars_trained(weights):
            warn(
                f'{origin} looks LARS-trained: the norms of its 3x3 convolutions are {typical_growth(weights):.1f} times those '
                'at initialization, so fine-tuning by SGD barely changes them; rescale it by tools/normrescale.py or by '
                "init_cfg=dict(type='mmairl.NormRescaled', checkpoint=..., anchor=...)"
            )


def weights_for(
    module: nn.Module, whole: dict[str, Tensor], prefix: str, path: str | Path
) -> dict[str, Tensor]:
    """Return the weights of a module: the tensors of a checkpoint whose keys start with a prefix.

    Stages that the module lacks are left out. For example, a C4 detector's backbone lacks the last stage.

    Raises:
        UserError: If the weights are not exactly those of the module.
    """
    network = module.state_dict()
    stages = {prefix + key.split('.')[0] for key in network}
    depth = prefix.count('.') + 1
    weights = {
        key.removeprefix(prefix): value
        for key, value in whole.items()
        if '.'.join(key.split('.')[:depth]) in stages
    }
    if not prefix:
        weights = fitted(weights, network, path)
    require_same_keys(weights, network, path)
    return weights


def fitted(
    weights: dict[str, Tensor], network: dict[str, Tensor], path: str | Path
) -> dict[str, Tensor]:
    """Fit the RGB kernels of the first convolution to images of C channels, as timm does, and return all weights.

    If C is 1, the three kernels are summed. Otherwise they are repeated for C channels and multiplied by 3 / C. In both
    cases, the response to a gray image stays about the same.
    """
    from timm.models import adapt_input_conv

    key = next((key for key, value in network.items() if value.ndim == 4), None)
    kernels = weights.get(key)
    if kernels is None or kernels.shape == network[key].shape:
        return weights
    # Other differences are errors of `require_same_keys`.
    if kernels.shape[1] != 3 or kernels[:, 0].shape != network[key][:, 0].shape:
        return weights
    channels = network[key].shape[1]
    kernels = adapt_input_conv(channels, kernels)
    print_log(f'{path}: the RGB kernels of {key} are fitted to {channels} channels', 'current')
    return {**weights, key: kernels}
