"""Weights that are made from other runs', without training: NormRescaled, or as a run had saved them earlier."""

import re
import time
from fractions import Fraction
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import get_world_size
from msgspec.structs import replace
from torch.utils.data import Subset

from mmairl.analysis.normrescale import normrescale
from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone, refresh_statistics
from mmairl.evaluation.on_features import extraction
from mmairl.evaluation.protocol import default_device
from mmairl.files import read_json, read_text, write_json, write_text
from mmairl.registry import DATASETS
from mmairl.study.spec import Along, Rescaled
from mmairl.study.stored import Trained
from mmairl.weights.read import Backbone, read_backbone
from mmairl.weights.write import write_backbone

STATISTICS = 200  # batches that batch norm's statistics are measured on, as many as PreciseBN takes


def rescale(cfg: Config, folder: Path, made: Rescaled) -> None:
    """Leave the weights of another run, NormRescaled by a third's or by a constant.

    Batch norm's statistics are measured anew, for the old ones belong to other activations and k-NN would be at chance.
    """
    start = time.perf_counter()
    for needed in filter(None, (made.of, made.anchor)):
        require_finished(folder, needed)
    backbone = read_backbone(str(last_checkpoint(Path(made.of))))
    anchor = made.anchor and read_backbone(str(last_checkpoint(Path(made.anchor)))).weights
    backbone.weights.update(normrescale(backbone.weights, anchor, made.constant)[0])
    network = load_backbone(cfg, backbone)
    how = extraction(cfg, default_device())
    data = DATASETS.build(cfg.evaluation.train)
    some = Subset(data, range(0, len(data), max(1, len(data) // (STATISTICS * how.batch_size))))
    refresh_statistics(network.to(how.device), (images for images, *_ in how.images(some, 'batch statistics')))
    backbone.weights.update(network.cpu().state_dict())
    seconds = time.perf_counter() - start
    trained = read_json(Path(made.of) / 'trained.json', Trained)
    spent = dict(seconds=seconds, device_seconds=seconds * get_world_size())
    keep(backbone, folder / 'rescaled.pth', replace(trained, **spent))


def take_earlier(folder: Path, made: Along) -> None:
    """Leave the weights that another run had saved after a part of its epochs."""
    require_finished(folder, made.of)
    last, part = last_checkpoint(Path(made.of)), Fraction(made.part)
    saved = last.with_name(re.sub(r'\d+', lambda end: str(round(int(end[0]) * part)), last.name))
    if not saved.is_file():
        raise UserError(
            f'{last.parent} kept no {saved.name}; its config wants max_keep_ckpts=-1 and an interval for it'
        )
    trained = read_json(last.parent / 'trained.json', Trained)
    seen = {key: round(getattr(trained, key) * part) for key in ('steps', 'images_seen')}
    keep(read_backbone(str(saved)), folder / 'taken.pth', replace(trained, **seen, seconds=0.0, device_seconds=0.0))


def require_finished(folder: Path, source: str) -> None:
    """Refuse half-trained weights, or those of a part of the half: they would pass for the run's."""
    if not (Path(source) / 'result.json').is_file():
        raise UserError(f'{folder} is made from the run in {source}, which is not finished; finish that run first')


def keep(backbone: Backbone, path: Path, trained: Trained) -> None:
    """Leave weights that were made of another run's as a run leaves its own."""
    write_backbone(backbone, path, 'mmairl')
    write_text(path.parent / 'last_checkpoint', path.name)
    write_json(path.with_name('trained.json'), trained)


def last_checkpoint(folder: Path) -> Path:
    return folder / Path(read_text(folder / 'last_checkpoint').strip()).name
