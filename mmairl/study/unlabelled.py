"""The measures without labels of a run's network, and the one that is trusted to choose by, if any."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmengine.config import Config
from msgspec import Struct

from mmairl.analysis.measures import MEASURES, REVISION, measures, training_loss, with_clid
from mmairl.analysis.subjects import Images
from mmairl.config import load_config
from mmairl.evaluation.protocol import default_device, default_workers
from mmairl.io import read_json, write_json
from mmairl.study.schema import Asked, Result, Trained
from mmairl.study.trusted import SETTINGS, trusted

FILE = 'measures.json'


class Unlabelled(Struct):
    """measures.json: of the weights with this digest, the measures that have a value; scores on test images, for regret."""

    sha256: str
    values: dict[str, float | None]
    scores: dict[str, float] = {}
    revision: int = REVISION

    @property
    def numbers(self) -> dict[str, float]:
        return {name: math.nan if value is None else value for name, value in self.values.items()}


def measure_checkpoint(checkpoint: Path, cfg: Config, loss: float) -> dict[str, float]:
    """Return the measures of a run's checkpoint, on the training images of its config's evaluation."""
    how = dict(device=default_device(), workers=default_workers(), batch_size=256)
    return measures(Images(cfg, 1, part='train', **how).network(str(checkpoint), 'student'), cfg, loss, **how)


def unlabelled(folder: Path) -> Unlabelled:
    """Measure a run's network, or read what is there of the same weights."""
    result, path = read_json(folder / 'result.json', Result), folder / FILE
    known = read_json(path, Unlabelled) if path.is_file() else None
    if known is None or (known.sha256, known.revision) != (result.sha256, REVISION):
        along = read_json(folder / 'asked.json', Asked).along
        cfg = load_config(str(folder / 'asked' / 'config.yaml'))
        each = cfg.optim_wrapper.get('accumulative_counts', 1)  # the log counts iterations
        until = read_json(folder / 'trained.json', Trained).steps * each if along else math.inf
        found = measure_checkpoint(
            folder / result.checkpoint, cfg, training_loss(Path(along.of) if along else folder, until)
        )
        known = Unlabelled(result.sha256, {name: v if math.isfinite(v) else None for name, v in found.items()})
        write_json(path, known)
    return known


def goodness_of(measure: str, networks: Mapping[Path, Mapping[str, float]]) -> list[float]:
    """Return how good a measure holds each of these networks to be."""
    return [MEASURES[measure].goodness(values.get(measure, math.nan)) for values in with_clid(networks).values()]


def goodness_of_runs(folders: Sequence[Path], criterion: str) -> list[float]:
    """Return the same of runs, by the measure that is trusted for the settings of a method; one that diverged is the worst."""
    networks = {}
    for folder in folders:
        diverged = read_json(folder / 'result.json', Result).diverged
        networks[folder] = dict.fromkeys(MEASURES, math.nan) if diverged else unlabelled(folder).numbers
    return goodness_of(trusted(SETTINGS, criterion)[0], networks)
