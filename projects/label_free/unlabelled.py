"""Measure the networks of a study's runs without labels, and store the result in measures.json of each run."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config
from msgspec import Struct

from mmairl.analysis.measures import training_loss
from mmairl.analysis.subjects import Images
from mmairl.config import load_config
from mmairl.evaluation.protocol import default_device, default_workers
from mmairl.io import read_json, write_json
from mmairl.study.schema import Asked, RunResult, Trained
from projects.label_free.extra_measures import REVISION, all_measures, goodness, with_clid

FILE = 'measures.json'


class Unlabelled(Struct):
    """The content of measures.json.

    Args:
        sha256: The digest of the measured weights.
        values: The measures. None means NaN, which JSON cannot store.
        scores: Scores on test images, which only the computation of regret reads.
        revision: The `REVISION` of the code that computed the measures.
    """

    sha256: str
    values: dict[str, float | None]
    scores: dict[str, float] = {}
    revision: int = REVISION

    @property
    def numbers(self) -> dict[str, float]:
        return {name: math.nan if value is None else value for name, value in self.values.items()}


def measure_checkpoint(checkpoint: Path, cfg: Config, loss: float) -> dict[str, float]:
    """Return the measures of a checkpoint on the training images of its config's evaluation."""
    loading = dict(device=default_device(), workers=default_workers(), batch_size=256)
    network = Images(cfg, 1, part='train', **loading).network(str(checkpoint), 'student')
    return all_measures(network, cfg, loss, **loading)


def measured_run(folder: Path) -> Unlabelled:
    """Measure the network of a run, or read its measures.json if that file describes the same weights."""
    result = read_json(folder / 'result.json', RunResult)
    path = folder / FILE
    record = read_json(path, Unlabelled) if path.is_file() else None
    if record is not None and (record.sha256, record.revision) == (result.sha256, REVISION):
        return record
    cfg = load_config(str(folder / 'asked' / 'config.yaml'))
    values = measure_checkpoint(folder / result.checkpoint, cfg, _loss_of_run(folder, cfg))
    plain = {name: value if math.isfinite(value) else None for name, value in values.items()}
    record = Unlabelled(result.sha256, plain)
    write_json(path, record)
    return record


def _loss_of_run(folder: Path, cfg: Config) -> float:
    """Return the training loss of a run. For an intermediate checkpoint, use only the losses up to the checkpoint's step."""
    along = read_json(folder / 'asked.json', Asked).along
    if not along:
        return training_loss(folder)
    # The log counts iterations, and a step with accumulated gradients takes several.
    iterations = cfg.optim_wrapper.get('accumulative_counts', 1)
    steps = read_json(folder / 'trained.json', Trained).steps
    return training_loss(Path(along.of), steps * iterations)


def goodness_of(measure: str, networks: Mapping[Any, Mapping[str, float]]) -> list[float]:
    """Return how good each network is by a measure. Higher is better."""
    values = with_clid(networks).values()
    return [goodness(measure, numbers.get(measure, math.nan)) for numbers in values]
