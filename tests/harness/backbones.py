"""Toy backbones of other packages, and a check that a backbone read from a file has the same features."""

from collections.abc import Callable

import timm
import torch
import torchvision
from torch import Tensor, nn

from mmairl.checkpoints.load import require_same_keys
from mmairl.checkpoints.read import Backbone, read_backbone
from mmairl.models.backbones import pooled
from mmairl.registry import MODELS

State = dict[str, Tensor]
SIDE = 32
IMAGES = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
NARROW = dict(type='mmpretrain.ResNet', depth=18, stem_channels=4, base_channels=4)
SMALL = dict(img_size=SIDE, patch_size=16, embed_dim=64, depth=2, num_heads=1)


def randomized(network: nn.Module) -> nn.Module:
    """Add noise to every tensor, so that a forgotten tensor changes the features."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in network.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(torch.rand(tensor.shape, generator=generator) * 0.1)
    network.eval()
    return network


def resnet() -> nn.Module:
    torch.manual_seed(0)
    network = randomized(torchvision.models.resnet18())
    network.fc = nn.Identity()
    return network


def narrow_resnet() -> nn.Module:
    torch.manual_seed(0)
    network = MODELS.build(NARROW)
    network.init_weights()
    return randomized(network)


def vit(name: str = 'vit_small_patch16_224', **how: object) -> nn.Module:
    torch.manual_seed(0)
    return randomized(timm.create_model(name, num_classes=0, **{**SMALL, **how}))


def dinov3(kind: str = 'small') -> nn.Module:
    """Return timm's DINOv3 of a kind: 'small', 'small_plus' (with a gated MLP) or 'small_plus_qkvb' (with biases)."""
    torch.manual_seed(0)
    size, bias, _ = kind.partition('_qkvb')
    how = dict(embed_dim=64, depth=2, num_heads=1, num_classes=0, global_pool='token')
    return randomized(timm.create_model(f'vit_{size}_patch16_dinov3{bias}', **how))


def torchvision_vit() -> nn.Module:
    torch.manual_seed(0)
    network = torchvision.models.VisionTransformer(
        SIDE, 16, num_layers=2, num_heads=1, hidden_dim=64, mlp_dim=128
    )
    network.heads = nn.Identity()
    return randomized(network)


def with_prefix(prefix: str, state: dict) -> dict:
    return {prefix + key: value for key, value in state.items()}


def build(backbone: Backbone) -> nn.Module:
    """Build the network of a backbone that was read from a file, with its weights."""
    network = MODELS.build(backbone.network)
    require_same_keys(backbone.weights, network.state_dict(), backbone.path)
    network.load_state_dict(backbone.weights)
    network.eval()
    return network


def features(network: Callable[[Tensor], object], images: Tensor = IMAGES) -> Tensor:
    with torch.no_grad():
        return pooled(network(images))


def assert_same_features(
    path: object, network: Callable, images: Tensor = IMAGES, tolerance: float = 1e-5, **how: object
) -> None:
    """Check that the backbone read from a file computes the same features as the network that was written to the file."""
    expected = features(network, images)
    features_of_file = features(build(read_backbone(path, **how)), images)
    assert (features_of_file - expected).abs().max() <= tolerance * expected.abs().max()
    assert expected.std() > 0.01
