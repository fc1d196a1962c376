"""Weights without training: made from other runs', NormRescaled or as a run had saved them earlier, or from elsewhere.

`origin` is the identity of how they are made. Weights of another origin are made anew, and their scores with them.
"""

import json
import re
import shutil
import time
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dist import get_world_size
from msgspec.structs import asdict, replace
from torch.utils.data import Subset

from mmairl.checkpoints.normrescale import normrescale
from mmairl.checkpoints.read import Backbone, read_backbone
from mmairl.checkpoints.write import write_backbone
from mmairl.config import load_config
from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone, refresh_statistics
from mmairl.evaluation.features import extraction
from mmairl.evaluation.identity import ABSENT, UNKNOWN, config_identity, data_identity, difference, model_at
from mmairl.evaluation.protocol import default_device, default_workers
from mmairl.io import read_json, read_text, write_json, write_text
from mmairl.registry import DATASETS
from mmairl.study.schema import Asked, Trained
from mmairl.study.spec import Along, Rescaled
from mmairl.study.trials import NOTED, OF_THE_FOLDER, best_trial

STATISTICS = 200  # batches that batch norm's statistics are measured on, as many as PreciseBN takes
SOURCES = ('of', 'anchor')  # the runs that weights are made from
KNOWN_DATA: dict[str, dict[str, Any]] = {}


def origin(asked: Asked, folder: Path) -> dict[str, Any]:
    """Return the identity of what a run's weights are made from; empty of a run that trains by its config alone."""
    if asked.chosen:
        try:
            return dict(chosen=config_identity(best_trial(asked.chosen).options))
        except UserError as error:
            return dict(chosen=f'{UNKNOWN}{error}')
    if asked.given:
        return dict(given=_weights_of(Path(asked.given)))
    made = asked.rescaled or asked.along
    if made is None:
        return {}
    part = getattr(made, 'part', None)
    sources = {key: _weights_in(Path(source), part) for key in SOURCES if (source := getattr(made, key, None))}
    if asked.rescaled:  # batch norm's statistics are measured on these images
        sources['data'] = known_data(load_config(str(folder / 'asked' / 'config.yaml')).evaluation.train)
    return {**config_identity(asdict(made)), **sources}


def _weights_in(folder: Path, part: str | None) -> Any:
    """Return the identity of the weights that a run has left, or had saved after a part of it."""
    if not all((folder / name).is_file() for name in ('asked.json', 'last_checkpoint')):
        return ABSENT
    try:
        asked = read_json(folder / 'asked.json', Asked)
        if asked.rescaled or asked.along:
            return origin(asked, folder)
        return _weights_of(saved_after(folder, part) if part else last_checkpoint(folder))
    except UserError as error:
        return f'{UNKNOWN}{error}'


def _weights_of(path: Path) -> str:
    return model_at(path).weights if path.exists() else ABSENT


def known_data(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity of a data set, which is looked at once in a process: the runs of a study share theirs."""
    key = json.dumps(described, default=str)
    if key not in KNOWN_DATA:
        KNOWN_DATA[key] = data_identity(described)
    return KNOWN_DATA[key]


def derive(cfg: Config, asked: Asked, folder: Path) -> None:
    """Leave weights of other runs', unless those that are there have the same origin."""
    for source in filter(None, (getattr(asked.rescaled or asked.along, key, None) for key in SOURCES)):
        require_finished(folder, source)
    made, trained = origin(asked, folder), folder / 'trained.json'
    if trained.is_file() and not difference(read_json(trained, Trained).made, made):
        return
    if asked.given:
        backbone, spent = take_given(cfg, asked.given), Trained()
    else:
        backbone, spent = rescale(cfg, asked.rescaled) if asked.rescaled else take_earlier(asked.along)
    path = folder / 'derived.pth'
    write_backbone(backbone, path, 'mmairl')
    write_text(folder / 'last_checkpoint', path.name)
    write_json(trained, replace(spent, made=made))


def rescale(cfg: Config, made: Rescaled) -> tuple[Backbone, Trained]:
    """Return the weights of another run, NormRescaled by a third's or by a constant.

    Batch norm's statistics are measured anew, for the old ones belong to other activations and k-NN would be at chance;
    the exact form has its own.
    """
    start = time.perf_counter()
    backbone = read_backbone(str(last_checkpoint(Path(made.of))))
    anchor = made.anchor and read_backbone(str(last_checkpoint(Path(made.anchor)))).weights
    rescaled, _ = normrescale(backbone.weights, anchor, made.constant, made.per, exact=made.exact)
    backbone.weights.update(rescaled)
    network = load_backbone(cfg, backbone)
    how = extraction(cfg, default_device(), default_workers())
    data = DATASETS.build(cfg.evaluation.train)
    some = Subset(data, range(0, len(data), max(1, len(data) // (STATISTICS * how.batch_size))))
    if not made.exact:
        refresh_statistics(network.to(how.device), (images for images, *_ in how.images(some, 'batch statistics')))
    backbone.weights.update(network.cpu().state_dict())
    seconds = time.perf_counter() - start
    trained = read_json(Path(made.of) / 'trained.json', Trained)
    return backbone, replace(trained, seconds=seconds, device_seconds=seconds * get_world_size())


def take_earlier(made: Along) -> tuple[Backbone, Trained]:
    """Return the weights that another run had saved after a part of its epochs."""
    source, part = Path(made.of), Fraction(made.part)
    saved, trained = saved_after(source, made.part), read_json(source / 'trained.json', Trained)
    if not saved.is_file():
        raise UserError(f'{source} kept no {saved.name}; its config wants max_keep_ckpts=-1 and an interval for it')
    seen = {key: round(getattr(trained, key) * part) for key in ('steps', 'images_seen')}
    return read_backbone(str(saved)), replace(trained, **seen, seconds=0.0, device_seconds=0.0)


def take_published(published: Path, asked: Asked, folder: Path) -> None:
    """Leave what the row as published has trained, at no cost, where the best trial is the row as published."""
    own = shutil.ignore_patterns(*OF_THE_FOLDER, 'result.json', 'trained.json', NOTED)
    shutil.copytree(published, folder, ignore=own, dirs_exist_ok=True)
    trained = read_json(published / 'trained.json', Trained)
    write_json(folder / 'trained.json', replace(trained, made=origin(asked, folder), seconds=0.0, device_seconds=0.0))


def take_given(cfg: Config, path: str) -> Backbone:
    """Return the weights of a checkpoint from elsewhere, which must fill the row's network."""
    backbone = read_backbone(path)
    network = load_backbone(cfg, backbone)
    backbone.weights.update(network.state_dict())
    return backbone


def saved_after(folder: Path, part: str) -> Path:
    """Return the checkpoint of a run after a part of it, whether or not it is there."""
    last = last_checkpoint(folder)
    return last.with_name(re.sub(r'\d+', lambda end: str(round(int(end[0]) * Fraction(part))), last.name))


def require_finished(folder: Path, source: str) -> None:
    """Refuse half-trained weights, or those of a part of the half: they would pass for the run's."""
    if not (Path(source) / 'result.json').is_file():
        raise UserError(f'{folder} is made from the run in {source}, which is not finished; finish that run first')


def last_checkpoint(folder: Path) -> Path:
    return folder / Path(read_text(folder / 'last_checkpoint').strip()).name
