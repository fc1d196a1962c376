"""Create the weights of rows that are not trained: weights of another run, rescaled or from before its end, or a file."""

import re
from fractions import Fraction
from pathlib import Path

from mmengine.config import Config
from torch.utils.data import Subset

from mmairl.checkpoints.normrescale import normrescale
from mmairl.checkpoints.read import Backbone, read_backbone
from mmairl.evaluation.backbone import load_backbone, refresh_statistics, tensors_of_config
from mmairl.evaluation.features import extraction
from mmairl.evaluation.protocol import default_device, default_workers
from mmairl.io import read_json
from mmairl.registry import DATASETS
from mmairl.study.runs import TRAINED, Request, Trained

# the approximate number of batches on which batch norm's statistics are measured, as in PreciseBN
STATISTICS = 200


def derived(cfg: Config, request: Request) -> tuple[Backbone, Trained | None]:
    """Return the weights of a run that is not trained, and facts about the run from which they come.

    Raises:
        UserError: If the other run is not finished, if it has not kept the requested checkpoint, or if the weights do not fit
            the network.
    """
    if request.file:
        backbone = read_backbone(request.file, network=tensors_of_config(cfg))
        backbone.weights.update(load_backbone(cfg, backbone).state_dict())
        return backbone, None
    folder = Path(request.folders['row'])
    trained = read_json(folder / TRAINED, Trained)
    part = Fraction(request.fingerprint.get('at', 1))
    name = re.sub(r'\d+', lambda number: str(round(int(number[0]) * part)), trained.checkpoint)
    backbone = read_backbone(str(folder / name), network=tensors_of_config(cfg))
    if request.fingerprint.keys() & {'constant', 'anchor'}:
        rescale(cfg, backbone, request)
    return backbone, trained


def rescale(cfg: Config, backbone: Backbone, request: Request) -> None:
    """Rescale weights by NormRescale, and measure batch norm's statistics again.

    Rescaling changes the activations of the network. With the old statistics, the accuracy of k-NN would be at chance.
    """
    anchor = None
    if 'anchor' in request.folders:
        folder = Path(request.folders['anchor'])
        trained = read_json(folder / TRAINED, Trained)
        anchor = read_backbone(str(folder / trained.checkpoint)).weights
    rescaled, _ = normrescale(backbone.weights, anchor, request.fingerprint.get('constant'))
    backbone.weights.update(rescaled)
    network = load_backbone(cfg, backbone)
    how = extraction(cfg, default_device(), default_workers())
    data = DATASETS.build(cfg.evaluation.train)
    step = max(1, len(data) // (STATISTICS * how.batch_size))
    batches = how.images(Subset(data, range(0, len(data), step)), 'batch statistics')
    refresh_statistics(network.to(how.device), (images for images, *_ in batches))
    backbone.weights.update(network.cpu().state_dict())
