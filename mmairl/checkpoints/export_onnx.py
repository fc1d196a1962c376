"""A backbone as an ONNX file, whose numbers are compared with torch's before it is kept."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from torch import Tensor, nn

import mmairl.models  # noqa: F401  registers mmpretrain's backbones
from mmairl.checkpoints.load import require_same_keys
from mmairl.checkpoints.read import Backbone
from mmairl.data.preprocess import channels_of
from mmairl.errors import UserError
from mmairl.io import output, replacing
from mmairl.models.backbones import pooled
from mmairl.registry import MODELS

NEEDED = ('onnx', 'onnxscript', 'onnxruntime')
ALLOWED = 1e-4  # of the largest feature: sums in another order


class Pooled(nn.Module):
    """A network from normalised images to vectors, which training and evaluation call the features."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        return pooled(self.backbone(images))


def write_onnx(
    backbone: Backbone, path: str | Path, size: int = 224, cfg: Config | None = None
) -> float:
    """Write it for batches of any length of normalised images; returns how far onnxruntime is from torch at most.

    The network is a ResNet, as its weights say, or that of `cfg`. The file's metadata says how images are normalised: values
    from 0 to 1, less `mean`, over `std`.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UserError(
            f"{', '.join(missing)} is not installed; pip install {' '.join(NEEDED)}, or 'mmairl[onnx]'"
        )
    init_default_scope('mmairl')
    network = MODELS.build(cfg.model.backbone if cfg else backbone.network)
    require_same_keys(backbone.weights, network.state_dict(), backbone.path)
    network.load_state_dict(backbone.weights)
    network = Pooled(network).float().eval().requires_grad_(False)
    channels = channels_of(network) or 3
    images = torch.randn(3, channels, size, size, generator=torch.Generator().manual_seed(0))
    normal = cfg.model.data_preprocessor if cfg else backbone.input
    about = dict(
        mean=list(normal.mean),
        std=list(normal.std),
        value_range=[0, 1],
        channels=channels,
        size=size,
    )
    with replacing(output(path, backbone.path)) as beside:
        torch.onnx.export(
            network,
            (images[:2],),
            beside,
            input_names=['images'],
            output_names=['features'],
            dynamic_shapes=({0: torch.export.Dim('batch')},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        import onnx

        model = onnx.load(beside)
        onnx.helper.set_model_props(model, {name: str(value) for name, value in about.items()})
        onnx.save(model, beside)
        return difference(network, beside, images, path)


def difference(network: nn.Module, file: Path, images: Tensor, name: str | Path) -> float:
    """The largest difference of a feature between onnxruntime and torch, over the largest feature."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=['CPUExecutionProvider'])
    (theirs,) = session.run(['features'], {'images': images.numpy()})
    ours = network(images).numpy()
    off = (
        float(np.abs(theirs - ours).max() / np.abs(ours).max())
        if theirs.shape == ours.shape
        else float('inf')
    )
    if not off <= ALLOWED:
        raise UserError(
            f"onnxruntime's features differ from torch's by {off:.1e} of the largest, so {name} is not kept; convert to "
            'another format, or with another release of torch or onnxruntime'
        )
    return off
