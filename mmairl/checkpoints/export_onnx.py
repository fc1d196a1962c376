"""Export a backbone as an ONNX file. The file is kept only if it computes the same features as torch."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config, ConfigDict
from mmengine.registry import init_default_scope
from torch import Tensor, nn

import mmairl.models  # noqa: F401  registers mmpretrain's backbones
from mmairl.checkpoints.hub_config import Input
from mmairl.checkpoints.load import require_same_keys
from mmairl.checkpoints.read import Backbone
from mmairl.data.preprocess import channels_of
from mmairl.errors import UserError
from mmairl.io import output, replacing
from mmairl.models.backbones import pooled
from mmairl.registry import MODELS

REQUIRED = ('onnx', 'onnxscript', 'onnxruntime')
# The features of torch and onnxruntime may differ by this fraction of the largest feature, because torch and onnxruntime add
# numbers in different orders.
TOLERANCE = 1e-4


class FeatureExtractor(nn.Sequential):
    """Compute feature vectors from normalized images."""

    def forward(self, images: Tensor) -> Tensor:
        return pooled(self[0](images))


def write_onnx(
    backbone: Backbone,
    path: str | Path,
    size: int = 224,
    cfg: Config | None = None,
    normalization: Input | ConfigDict | None = None,
) -> float:
    """Write an ONNX file that computes feature vectors from a batch of normalized images. Batches may have any size.

    The metadata of the file has the `mean` and `std` by which to normalize images whose values are between 0 and 1.

    Args:
        backbone: The backbone to export.
        path: The file to write.
        size: Side of the images in pixels.
        cfg: A config that describes the backbone, required unless the backbone is a ResNet or a ViT.
        normalization: The `mean` and `std` of images. Default: those of the config, else of the backbone.

    Returns:
        The largest difference between onnxruntime's and torch's value of a feature, as a fraction of the largest feature.

    Raises:
        UserError: If a package is missing, the weights do not fit the network, or the features differ.
    """
    missing = [name for name in REQUIRED if find_spec(name) is None]
    if missing:
        raise UserError(
            f"--to onnx requires packages ('{', '.join(missing)}'); pip install onnx onnxscript onnxruntime",
            code='missing-onnx',
        )
    init_default_scope('mmairl')
    network = MODELS.build(cfg.model.backbone if cfg else backbone.network)
    require_same_keys(backbone.weights, network.state_dict(), backbone.path)
    network.load_state_dict(backbone.weights)
    network = FeatureExtractor(network).float().eval().requires_grad_(False)
    channels = channels_of(network) or 3
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(3, channels, size, size, generator=generator)
    if normalization is None:
        normalization = cfg.model.data_preprocessor if cfg else backbone.input
    metadata = dict(
        mean=list(normalization.mean),
        std=list(normalization.std),
        value_range=[0, 1],
        channels=channels,
        size=size,
    )
    with replacing(output(path, backbone.path)) as temporary:
        torch.onnx.export(
            network,
            (images[:2],),
            temporary,
            input_names=['images'],
            output_names=['features'],
            dynamic_shapes=({0: torch.export.Dim('batch')},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        import onnx

        model = onnx.load(temporary)
        onnx.helper.set_model_props(model, {name: str(value) for name, value in metadata.items()})
        onnx.save(model, temporary)
        return _feature_difference(network, temporary, images, path)


def _feature_difference(network: nn.Module, file: Path, images: Tensor, path: str | Path) -> float:
    """Return the largest difference between onnxruntime's and torch's features, as a fraction of the largest feature.

    Raise an error if it is larger than TOLERANCE.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=['CPUExecutionProvider'])
    (exported,) = session.run(['features'], {'images': images.numpy()})
    expected = network(images).numpy()
    error = float('inf')
    if exported.shape == expected.shape:
        error = float(np.abs(exported - expected).max() / np.abs(expected).max())
    if not error <= TOLERANCE:
        raise UserError(
            f"{path}: not written, because the features of onnxruntime differ from torch's (by '{error:.1e}' times the largest "
            'feature); choose another format, or another release of torch or onnxruntime',
            code='onnx-difference',
        )
    return error
