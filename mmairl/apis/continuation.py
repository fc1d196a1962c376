"""Settings of runs that continue trained weights, distill them, or are guarded by labeled images."""

from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config

from mmairl.apis.evaluate import class_folders
from mmairl.apis.given_network import width_of
from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.released import is_released
from mmairl.engine.hooks.schedules import freeze_prototypes
from mmairl.models.backbones import patch_size
from mmairl.registry import MODELS

# For this part of a run, prototypes stay frozen, because their first gradients would destroy the learned features.
FROZEN = 0.1


class Trained(NamedTuple):
    """A network with trained weights.

    Attributes:
        backbone: The config of the backbone, which loads the weights.
        width: Number of pooled features.
        patch: Side of a ViT's patches in pixels, or 1.
        normal: Mean and standard deviation of its images, if they are known.
    """

    backbone: dict[str, Any]
    width: int
    patch: int
    normal: dict[str, list[float]]

    @property
    def is_resnet(self) -> bool:
        """Whether the network is mmpretrain's ResNet. All other networks are continued like a ViT."""
        return 'ResNet' in self.backbone['type']


def trained(weights: str | Path) -> Trained:
    """Describe the network in a checkpoint, or a released model."""
    found = read_backbone(weights)
    backbone = found.network
    network = MODELS.build(backbone)
    width = width_of(network, found.input.channels or 3, found.input.size)
    file = str(weights) if is_released(weights) else str(Path(weights).absolute())
    backbone['init_cfg'] = dict(type='PretrainedBackbone', checkpoint=file)
    normal = {}
    if found.input.origin:
        normal = dict(mean=list(found.input.mean), std=list(found.input.std))
    return Trained(backbone, width, patch_size(network), normal)


def continued(base: Config, start: Trained) -> dict[str, Any]:
    """Return settings with which a method, whose config is `base`, continues trained weights."""
    backbone = dict(start.backbone)
    if not (start.is_resnet and 'depth' in base.model.backbone):
        backbone['_delete_'] = True
    if base.model.get('masking'):
        backbone |= dict(tokens=True) if 'name' in backbone else dict(out_type='raw')
    settings = {'model.backbone': backbone}
    for key, values in start.normal.items():
        settings[f'model.data_preprocessor.{key}'] = values
    if hooks := base.to_dict().get('custom_hooks'):
        freeze_prototypes(hooks, FROZEN)
        settings['custom_hooks'] = hooks
    return settings


def distilled(teacher: Trained, size: int) -> dict[str, Any]:
    """Return settings with which crops of a size are distilled from a network."""
    own = whole_patches(size, teacher.patch)
    frozen = dict(type='FrozenTeacher', _delete_=True, backbone=teacher.backbone, **teacher.normal)
    if own != size:
        frozen['size'] = own
    return {'model.teacher': frozen, 'model.projector.out_channels': teacher.width}


def guarded(labels: str | Path, cfg: Config) -> dict[str, Any]:
    """Return settings that guard a run by the k-NN accuracy on labeled images in a folder."""
    parts = class_folders(Path(labels))
    return {
        'evaluation': {'_delete_': True, **parts, 'val': parts['test'], 'batch_size': 64},
        'val_cfg': dict(type='KNNValLoop', half=True),
        'val_dataloader': {},
        'val_evaluator': [],
        'train_cfg.val_interval': max(1, cfg.train_cfg.max_epochs // 10),
        'custom_hooks': [*cfg.get('custom_hooks', []), dict(type='GuardHook')],
    }


def whole_patches(size: float, patch: int) -> int:
    return max(1, round(size / patch)) * patch
