"""Export a backbone as an ONNX file. The file is kept only if it computes the same features as torch."""

from pathlib import Path

import torch
from mmengine.config import Config
from torch import Tensor, nn

from mmairl.checkpoints.load import require_same_keys
from mmairl.checkpoints.read import Backbone
from mmairl.data.decode import installed
from mmairl.errors import UserError
from mmairl.io import output, replacing
from mmairl.models.backbones import features
from mmairl.registry import MODELS

# The features of torch and onnxruntime may differ by this fraction of the largest feature, because torch and onnxruntime add
# numbers in different orders.
TOLERANCE = 1e-4


class FeatureExtractor(nn.Sequential):
    """Compute feature vectors from normalized images."""

    def forward(self, images: Tensor) -> Tensor:
        return features(self[0], images).pooled


def write_onnx(
    backbone: Backbone, path: str | Path, size: int = 224, cfg: Config | None = None
) -> float:
    """Write an ONNX file that computes feature vectors from a batch of normalized images. Batches may have any size.

    Args:
        backbone: The backbone to export.
        path: The file to write.
        size: Side of the images in pixels.
        cfg: A config that describes the backbone, required unless the backbone is a ResNet, a plain ViT or a network of timm.

    Returns:
        The largest difference between onnxruntime's and torch's value of a feature, as a fraction of the largest feature.

    Raises:
        UserError: If a package is missing, the weights do not fit the network, or the features differ.
    """
    with installed('onnxruntime onnx onnxscript', 'ONNX files'):
        import onnxruntime
        import onnxscript  # noqa: F401  torch.onnx.export imports this package late
    network = MODELS.build(cfg.model.backbone if cfg else backbone.network)
    require_same_keys(backbone.weights, network.state_dict(), backbone.path)
    network.load_state_dict(backbone.weights)
    network = FeatureExtractor(network).float().eval().requires_grad_(False)
    channels = next(value.shape[1] for value in backbone.weights.values() if value.ndim == 4)
    images = torch.randn(3, channels, size, size, generator=torch.Generator().manual_seed(0))
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
        session = onnxruntime.InferenceSession(temporary, providers=['CPUExecutionProvider'])
        exported = torch.from_numpy(session.run(['features'], {'images': images.numpy()})[0])
        expected = network(images)
        error = float((exported - expected).abs().max() / expected.abs().max())
        if not error <= TOLERANCE:
            raise UserError(
                f"{path}: not written, because the features of onnxruntime differ from torch's ('{error:.1e}' of the largest "
                'feature); use another format',
                code='other-features',
            )
    return error
