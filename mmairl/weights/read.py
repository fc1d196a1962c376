"""A backbone out of any checkpoint: of mmairl, the paper's release, MoCo, mmpretrain, torchvision, timm, VISSL or detectron2.

Where student and teacher are, and how the backbone's tensors are named, is a project's format. Our own names are
torchvision's for ResNets and mmpretrain's for ViTs.
"""

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import print_log
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.registry import WEIGHT_INITIALIZERS
from mmairl.weights.load import load_checkpoint, require_same_keys
from mmairl.weights.norms import warning_before_fine_tuning
from mmairl.weights.pickles import ORIGIN

# What a checkpoint wraps its weights in, from the outside in.
ENVELOPES = ('state_dict', 'model', 'classy_state_dict', 'base_model', 'model_state', 'network')
WRAPPERS = ('module.', '_orig_mod.')


@dataclass(frozen=True)
class Backbone:
    """One network's backbone under our names, and how it was found. `settings` are those of a training run of ours, as text."""

    weights: dict[str, Tensor]
    path: str
    source: str
    part: str
    renamed: dict[str, str] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    origin: dict = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f'{self.part} of {self.path} ({self.source})'


def read_backbone(path: str | Path, part: str = 'student') -> Backbone:
    """The backbone of the student or the teacher in a checkpoint of any known project.

    >>> read_backbone('moco_v2_200ep_pretrain.pth.tar', 'teacher').weights['conv1.weight'].shape  # doctest: +SKIP
    torch.Size([64, 3, 7, 7])
    """
    if part not in ('student', 'teacher'):
        raise UserError(f"part '{part}' is not in a checkpoint; say student or teacher")
    tensors, origin, settings = read_tensors(path)
    form = recognise(tensors)
    if form is None:
        raise UserError(
            f'{path} holds no {part} backbone that mmairl knows: its keys look like {list(tensors)[:3]}; give a ResNet '
            'or ViT by the names of mmairl, MoCo, mmpretrain, torchvision, timm, VISSL or detectron2'
        )
    prefix = form.student if part == 'student' else form.teacher
    if prefix is None or not any(key.startswith(prefix) for key in tensors):
        wanted = f" (no key starts with '{prefix}')" if prefix else ''
        raise UserError(f'{path} holds no teacher{wanted}: by its keys it is {form.name}; use --part student')
    inside = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    kept = {key: value for key, value in inside.items() if form.pure or BACKBONE.match(key)}
    names = names_of(kept)
    renamed = {prefix + key: rename(key, names, to_ours=True) for key in kept}
    weights = {renamed[prefix + key]: value for key, value in kept.items()}
    dropped = [key for key in tensors if key not in renamed]
    return Backbone(with_counters(weights), str(path), form.name, part, renamed, dropped, origin, settings)


def with_counters(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the batch counters that some formats leave out; a BN layer with a fixed momentum does not use them."""
    for key in [key for key in weights if key.endswith('.running_mean')]:
        weights.setdefault(key.replace('running_mean', 'num_batches_tracked'), torch.tensor(0))
    return weights


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict, dict[str, str]]:
    """Every tensor of a checkpoint by its name, without wrappers; its record of origin and its run's settings, if any."""
    loaded = load_checkpoint(path)
    meta, inner = loaded.get('meta'), loaded
    # DDP, torch.compile and training scripts each add an envelope.
    while found := next((name for name in ENVELOPES if isinstance(inner.get(name), dict)), None):
        inner = inner[found]
    tensors = {}
    for key, value in _flat(inner):
        for wrapper in WRAPPERS:
            key = key.removeprefix(wrapper)
        tensors[key] = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    origin = meta.get(ORIGIN) if isinstance(meta, dict) else getattr(loaded, ORIGIN, None)
    settings = meta.get('settings') if isinstance(meta, dict) else None
    return tensors, *(found if isinstance(found, dict) else {} for found in (origin, settings))


def _flat(values: dict, prefix: str = '') -> list[tuple[str, Any]]:
    """Tensors and arrays by dotted names; VISSL nests `trunk` and `heads` one level down."""
    found = []
    for key, value in values.items():
        if isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in 'fiu'):
            found.append((f'{prefix}{key}', value))
        elif isinstance(value, dict) and key in ('trunk', 'heads'):
            found += _flat(value, f'{prefix}{key}.')
    return found


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

    def weights(self) -> tuple[dict[str, Tensor], str]:
        """The backbone's weights, and a few words on what they are."""
        found = read_backbone(self.checkpoint, self.part)
        return found.weights, str(found)

    def __call__(self, module: nn.Module) -> None:
        whole, origin = self.weights()
        weights = weights_for(module, whole, self.prefix, self.checkpoint)
        module.load_state_dict(weights)
        if hasattr(module, 'zero_init_residual'):
            # mmpretrain's ResNet would zero the last norms after any other initializer
            module.zero_init_residual = False
        print_log(f'{self.prefix or "backbone"}: {origin}, all {len(weights)} keys matched', logger='current')
        will_learn = any(parameter.requires_grad for parameter in module.parameters())
        if will_learn and (warning := warning_before_fine_tuning(weights, origin)):
            print_log(warning, logger='current', level=logging.WARNING)


# The stem of a ResNet or a ViT under each of the names that layouts give it.
STEMS = ('conv1.weight', 'stem.', 'patch_embed.', 'cls_token')


@dataclass(frozen=True)
class Format:
    """One project's way to lay out a checkpoint: the prefixes of its student's backbone and of its teacher's, if any."""

    name: str
    student: str
    teacher: str | None = None

    @property
    def pure(self) -> bool:
        """Whether nothing but the backbone lies below the prefix; then it may be of any kind, not a ResNet or ViT alone."""
        return self.student.endswith(('backbone.', '.0.', '_feature_blocks.', 'bottom_up.'))

    def fits(self, keys: Collection[str]) -> bool:
        begins = self.student if self.pure else tuple(self.student + stem for stem in STEMS)
        return any(key.startswith(begins) for key in keys)


# The most particular first: a format's names may hold another's.
FORMATS = (
    Format('mmselfsup (MoCo)', 'encoder_q.0.', 'encoder_k.0.'),
    Format('mmselfsup (BYOL)', 'online_net.0.', 'target_net.module.0.'),
    Format('mmselfsup (BYOL)', 'online_net.0.', 'target_net.0.'),
    Format('MoCo v1 or v2', 'encoder_q.', 'encoder_k.'),
    Format('MoCo v3', 'base_encoder.', 'momentum_encoder.'),
    Format("the paper's release", 'online_encoder.', 'target_encoder.'),
    Format("the paper's release", 'student_encoder.', 'teacher_encoder.'),
    Format('mmairl', 'backbone.', 'teacher.backbone.'),
    Format('mmpretrain (MoCo)', 'backbone.', 'encoder_k.module.0.'),
    Format('mmpretrain (BYOL)', 'backbone.', 'target_net.module.0.'),
    Format('mmpretrain (MoCo v3)', 'backbone.', 'momentum_encoder.module.0.'),
    Format('detectron2 (FPN)', 'backbone.bottom_up.'),
    Format('mmairl or OpenMMLab', 'backbone.'),
    Format('VISSL', 'trunk._feature_blocks.'),
    Format('VISSL', 'trunk.base_model._feature_blocks.'),
    Format('VISSL', '_feature_blocks.'),
    Format('SimSiam', 'encoder.'),
    Format('plain (torchvision, timm, detectron2)', ''),
)


def recognise(keys: Collection[str]) -> Format | None:
    """The format of a checkpoint with these keys: one whose teacher is there too goes before one without."""
    fitting = [form for form in FORMATS if form.fits(keys)]
    with_teacher = [
        form for form in fitting if form.teacher is not None and any(key.startswith(form.teacher) for key in keys)
    ]
    # A student whose teacher was cut away is still a student.
    alone = [form for form in fitting if form.teacher is None] or fitting
    found = with_teacher or alone
    return found[0] if found else None


Names = tuple[tuple[str, str], ...]

# Our names and another project's by pairs, tried on each key in this order and in either direction. What begins with a dot
# may be anywhere in a key, the rest is its beginning; `#` is a number.
DETECTRON2: Names = (
    ('bn1.', 'stem.conv1.norm.'),
    ('conv1.', 'stem.conv1.'),
    ('layer1.', 'res2.'),
    ('layer2.', 'res3.'),
    ('layer3.', 'res4.'),
    ('layer4.', 'res5.'),
    ('.downsample.1.', '.shortcut.norm.'),
    ('.downsample.0.', '.shortcut.'),
    ('.bn#.', '.conv#.norm.'),
)
TIMM: Names = (
    ('ln1.', 'norm.'),
    ('layers.#.ln#.', 'blocks.#.norm#.'),
    ('layers.#.ffn.layers.0.0.', 'blocks.#.mlp.fc1.'),
    ('layers.#.ffn.layers.1.', 'blocks.#.mlp.fc2.'),
    ('layers.', 'blocks.'),
    ('patch_embed.projection.', 'patch_embed.proj.'),
)
# The first name of every tensor of a ResNet or ViT, in any layout; what begins otherwise is a head.
BACKBONE = re.compile(
    r'(conv1|bn1|layer[1-4]|stem|res[2-5]|cls_token|pos_embed|patch_embed|blocks|norm|layers|ln1|pre_norm)(\.|$)'
)


def rename(key: str, names: Names, to_ours: bool = False) -> str:
    for pair in names:
        old, new = reversed(pair) if to_ours else pair
        pattern = ('' if old.startswith('.') else '^') + re.escape(old).replace(r'\#', r'(\d+)')
        key = re.sub(pattern, lambda found, new=new: new.replace('#', '{}').format(*found.groups()), key)
    return key


def names_of(keys: Iterable[str]) -> Names:
    """The names that these keys, free of any prefix, have in place of ours."""
    keys = set(keys)
    if 'stem.conv1.weight' in keys:
        return DETECTRON2
    return TIMM if any(key.startswith('blocks.') for key in keys) else ()


# Blocks per stage, and whether a block is a bottleneck, to the depth.
DEPTHS = {
    ((2, 2, 2, 2), False): 18,
    ((3, 4, 6, 3), False): 34,
    ((3, 4, 6, 3), True): 50,
    ((3, 4, 23, 3), True): 101,
    ((3, 8, 36, 3), True): 152,
    ((3, 24, 36, 3), True): 200,
}


def resnet_of(weights: Mapping[str, Tensor], path: str = 'the checkpoint') -> dict:
    """The `backbone=` of a config that these weights fit.

    >>> import torchvision
    >>> resnet_of(torchvision.models.resnet18().state_dict())
    {'type': 'ResNet', 'depth': 18, 'stem_channels': 64, 'base_channels': 64}
    """
    blocks = {tuple(map(int, found.groups())) for key in weights if (found := re.match(r'layer(\d)\.(\d+)\.', key))}
    stages = tuple(sum(stage == number for stage, _ in blocks) for number in (1, 2, 3, 4))
    depth = DEPTHS.get((stages, 'layer1.0.conv3.weight' in weights))
    if depth is None or 'conv1.weight' not in weights:
        raise UserError(
            f'{path} holds no ResNet whose depth is known (blocks {stages}); give --config with its backbone'
        )
    return dict(
        type='ResNet',
        depth=depth,
        stem_channels=weights['conv1.weight'].shape[0],
        base_channels=weights['layer1.0.conv1.weight'].shape[0],
        **({} if (channels := weights['conv1.weight'].shape[1]) == 3 else {'in_channels': channels}),
    )
