"""How others name a backbone's tensors, as renaming rules to ours (torchvision's for ResNets, mmpretrain's for ViTs)."""

import re
from collections.abc import Iterable

Rules = tuple[tuple[str, str], ...]

# Each rule is tried on each key, in this order; together they are one to one.
DETECTRON2_TO_OURS: Rules = (
    (r'^stem\.conv1\.norm\.', 'bn1.'),
    (r'^stem\.conv1\.', 'conv1.'),
    (r'^res5\.', 'layer4.'),
    (r'^res4\.', 'layer3.'),
    (r'^res3\.', 'layer2.'),
    (r'^res2\.', 'layer1.'),
    (r'\.shortcut\.norm\.', '.downsample.1.'),
    (r'\.shortcut\.', '.downsample.0.'),
    (r'\.conv([123])\.norm\.', r'.bn\1.'),
)
OURS_TO_DETECTRON2: Rules = (
    (r'^bn1\.', 'stem.conv1.norm.'),
    (r'^conv1\.', 'stem.conv1.'),
    (r'^layer1\.', 'res2.'),
    (r'^layer2\.', 'res3.'),
    (r'^layer3\.', 'res4.'),
    (r'^layer4\.', 'res5.'),
    (r'\.downsample\.1\.', '.shortcut.norm.'),
    (r'\.downsample\.0\.', '.shortcut.'),
    (r'\.bn([123])\.', r'.conv\1.norm.'),
)
TIMM_TO_OURS: Rules = (
    (r'^norm\.', 'ln1.'),
    (r'^blocks\.(\d+)\.norm([12])\.', r'layers.\1.ln\2.'),
    (r'^blocks\.(\d+)\.mlp\.fc1\.', r'layers.\1.ffn.layers.0.0.'),
    (r'^blocks\.(\d+)\.mlp\.fc2\.', r'layers.\1.ffn.layers.1.'),
    (r'^blocks\.', 'layers.'),
    (r'^patch_embed\.proj\.', 'patch_embed.projection.'),
)
OURS_TO_TIMM: Rules = (
    (r'^ln1\.', 'norm.'),
    (r'^layers\.(\d+)\.ln([12])\.', r'blocks.\1.norm\2.'),
    (r'^layers\.(\d+)\.ffn\.layers\.0\.0\.', r'blocks.\1.mlp.fc1.'),
    (r'^layers\.(\d+)\.ffn\.layers\.1\.', r'blocks.\1.mlp.fc2.'),
    (r'^layers\.', 'blocks.'),
    (r'^patch_embed\.projection\.', 'patch_embed.proj.'),
)
# The first name of every tensor of a ResNet or ViT, in any layout; what begins otherwise is a head.
BACKBONE = re.compile(
    r'(conv1|bn1|layer[1-4]|stem|res[2-5]|cls_token|pos_embed|patch_embed|blocks|norm|layers|ln1|pre_norm)(\.|$)'
)


def rename(key: str, rules: Rules) -> str:
    for pattern, replacement in rules:
        key = re.sub(pattern, replacement, key)
    return key


def rules_to_ours(keys: Iterable[str]) -> Rules:
    """The rules that bring these keys, free of any prefix, to our names."""
    keys = set(keys)
    if 'stem.conv1.weight' in keys:
        return DETECTRON2_TO_OURS
    if any(key.startswith('blocks.') for key in keys):
        return TIMM_TO_OURS
    return ()
