"""Create the weights of rows that are not trained.

A row of a study is one configuration, usually trained with several seeds. A search tunes a row by trials, which are runs
with different options.

The weights of a row that is not trained are another run's weights after NormRescale (see `checkpoints.normrescale`), an
earlier checkpoint of another run, or an external checkpoint.

The function `origin` returns an identity of everything from which the weights of a run are created. If this identity changes,
the run is out of date. If its row is not trained, the weights are created again and measured again.
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
from mmairl.evaluation.backbone import load_backbone, refresh_statistics, tensors_of_config
from mmairl.evaluation.features import extraction
from mmairl.evaluation.identity import ABSENT, UNKNOWN, config_identity, data_identity, difference
from mmairl.evaluation.protocol import default_device, default_workers
from mmairl.io import read_json, write_json, write_text
from mmairl.registry import DATASETS
from mmairl.study.model_identity import model_at
from mmairl.study.schema import CHOICE, REQUEST_AND_LOGS, Asked, Branch, Trained, last_checkpoint
from mmairl.study.spec import Along, Rescaled, roles
from mmairl.study.trials import best_trial

# the approximate number of batches on which batch norm's statistics are measured, as in PreciseBN
STATISTICS = 200
CONFIG = 'asked/config.yaml'
KNOWN_DATA: dict[str, dict[str, Any]] = {}


def origin(asked: Asked, folder: Path) -> dict[str, Any]:
    """Return the identity of everything from which a run's weights are created, in addition to its config and seed.

    The result is empty if the weights depend on nothing else.
    """
    if asked.chosen:
        try:
            return dict(chosen=config_identity(best_trial(asked.chosen).options))
        except UserError as error:
            return dict(chosen=f'{UNKNOWN}{error}')
    if asked.external:
        cfg = _config_in(folder) if (folder / CONFIG).is_file() else None
        return dict(given=_weights_of(Path(asked.external), cfg))
    if asked.fork:
        return dict(fork=dict(of=_weights_of(fork_checkpoint(asked.fork)), epoch=asked.fork.epoch))
    made = asked.rescaled or asked.along
    if made is None:
        return {}
    part = asked.along and asked.along.part
    sources = {role: _weights_in(Path(source), part) for role, source in roles(made).items()}
    # Rescaled weights depend on these images, because batch norm's statistics are measured on them.
    if asked.rescaled:
        sources['data'] = known_data(_config_in(folder).evaluation.train)
    return {**config_identity(asdict(made)), **sources}


def fork_checkpoint(branch: Branch) -> Path:
    """Return the path of the checkpoint from which a branch (the run of a fork) continues. The file may not exist yet."""
    return Path(branch.trunk) / f'epoch_{branch.epoch}.pth'


def _config_in(folder: Path) -> Config:
    return load_config(str(folder / CONFIG))


def _weights_in(folder: Path, part: str | None) -> Any:
    """Return the identity of a run's last weights, or of its weights after a `part` of its training."""
    if not all((folder / name).is_file() for name in ('asked.json', 'last_checkpoint')):
        return ABSENT
    try:
        asked = read_json(folder / 'asked.json', Asked)
        if asked.rescaled or asked.along:
            return origin(asked, folder)
        return _weights_of(saved_after(folder, part) if part else last_checkpoint(folder))
    except UserError as error:
        return f'{UNKNOWN}{error}'


def _weights_of(path: Path, cfg: Config | None = None) -> str:
    return model_at(path, cfg).weights if path.exists() else ABSENT


def known_data(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity of a data set. It is computed only once per process, because many runs use the same data."""
    key = json.dumps(described, default=str)
    if key not in KNOWN_DATA:
        KNOWN_DATA[key] = data_identity(described)
    return KNOWN_DATA[key]


def create_weights(cfg: Config, asked: Asked, folder: Path) -> None:
    """Create the weights of a run that is not trained, and write them to its folder.

    Nothing is written if the folder already has weights of the same origin.
    """
    for source in roles(asked.rescaled or asked.along).values():
        require_finished(folder, Path(source))
    made = origin(asked, folder)
    trained = folder / 'trained.json'
    if trained.is_file() and not difference(read_json(trained, Trained).made, made):
        return
    spent = Trained()
    if asked.external:  # Reading raises an error if the weights do not fit the network of the row.
        backbone = read_backbone(asked.external, network=tensors_of_config(cfg))
        backbone.weights.update(load_backbone(cfg, backbone).state_dict())
    elif asked.rescaled:
        backbone, spent = rescaled_weights(cfg, asked.rescaled)
    else:
        backbone, spent = earlier_weights(asked.along)
    path = folder / 'derived.pth'
    write_backbone(backbone, path, 'mmairl')
    write_text(folder / 'last_checkpoint', path.name)
    write_json(trained, replace(spent, made=made))


def rescaled_weights(cfg: Config, made: Rescaled) -> tuple[Backbone, Trained]:
    """Return the weights of another run after NormRescale, and a summary of their training.

    Rescaling changes the activations of the network, so batch norm's statistics are measured again. With the old statistics,
    the accuracy of k-NN would be at chance.
    """
    start = time.perf_counter()
    backbone = read_backbone(str(last_checkpoint(Path(made.of))))
    anchor = made.anchor and read_backbone(str(last_checkpoint(Path(made.anchor)))).weights
    rescaled, _ = normrescale(backbone.weights, anchor, made.constant)
    backbone.weights.update(rescaled)
    network = load_backbone(cfg, backbone)
    how = extraction(cfg, default_device(), default_workers())
    data = DATASETS.build(cfg.evaluation.train)
    step = max(1, len(data) // (STATISTICS * how.batch_size))
    batches = how.images(Subset(data, range(0, len(data), step)), 'batch statistics')
    refresh_statistics(network.to(how.device), (images for images, *_ in batches))
    backbone.weights.update(network.cpu().state_dict())
    seconds = time.perf_counter() - start
    trained = read_json(Path(made.of) / 'trained.json', Trained)
    return backbone, replace(trained, seconds=seconds, device_seconds=seconds * get_world_size())


def earlier_weights(made: Along) -> tuple[Backbone, Trained]:
    """Return the weights that another run saved after a part of its training, and a summary of this training."""
    source = Path(made.of)
    part = Fraction(made.part)
    saved = saved_after(source, made.part)
    trained = read_json(source / 'trained.json', Trained)
    if not saved.is_file():
        raise UserError(
            f"along: the run '{source}' has not kept the checkpoint {saved.name}; set max_keep_ckpts=-1 in its config, and an "
            'interval at which this checkpoint is saved',
            code='no-earlier-checkpoint',
        )
    seen = {key: round(getattr(trained, key) * part) for key in ('steps', 'images_seen')}
    return read_backbone(str(saved)), replace(trained, **seen, seconds=0.0, device_seconds=0.0)


def take_published(published: Path, asked: Asked, folder: Path) -> None:
    """Copy the run that was trained with the row's own options, instead of training again with the same options and seed.

    This is possible if the best trial of a search has the row's own options.
    """
    ignored = shutil.ignore_patterns(*REQUEST_AND_LOGS, 'result.json', 'trained.json', CHOICE)
    shutil.copytree(published, folder, ignore=ignored, dirs_exist_ok=True)
    trained = read_json(published / 'trained.json', Trained)
    write_json(
        folder / 'trained.json',
        replace(trained, made=origin(asked, folder), seconds=0.0, device_seconds=0.0),
    )


def saved_after(folder: Path, part: str) -> Path:
    """Return the path of a run's checkpoint after a part of its training. The file may not exist."""
    last = last_checkpoint(folder)

    def scaled(number: re.Match) -> str:
        return str(round(int(number[0]) * Fraction(part)))

    return last.with_name(re.sub(r'\d+', scaled, last.name))


def require_finished(folder: Path, source: Path) -> None:
    """Raise an error if the run in `source`, whose results the run in `folder` uses, is not finished."""
    if not (source / 'result.json').is_file():
        raise UserError(
            f"{folder}: this run requires the results of the run in '{source}', which is not finished; finish that run first",
            code='source-not-finished',
        )
