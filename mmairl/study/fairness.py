"""The fairness check: raise an error if compared rows differ in settings that the study does not declare."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from mmengine.config import Config

from mmairl.checkpoints.architecture import tensors_of
from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.released import is_released
from mmairl.config import load_config
from mmairl.errors import UserError
from mmairl.evaluation.identity import weights_identity
from mmairl.evaluation.protocol import BASELINES, protocol_class
from mmairl.evaluation.sets import innermost
from mmairl.study.scale import Scale, resolve
from mmairl.study.study import Row, Study
from mmairl.study.tasks import is_measured, require_known

# The keys of a config that affect what a training run computes.
TRAINING = (
    'model',
    'load_from',
    'train_dataloader',
    'optim_wrapper',
    'param_scheduler',
    'train_cfg',
    'default_hooks',
    'total_batch_size',
    'custom_hooks',
    'fast',
)
# The transforms of views have one config key if the data loader applies them, and another if the device does. A row that
# declares the first key also declares the second one.
VIEWS = 'train_dataloader.dataset.views'
VIEWS_ON_DEVICE = 'model.data_preprocessor.views'
CHECKS = {  # the properties that finished runs of all rows should share, each with its key in the record of a run
    'images seen': 'images_seen',
    'optimizer steps': 'steps',
    'source of mmairl': 'source',
    'packages': 'versions',
    'source of own modules': 'sources',
}


@dataclass(frozen=True)
class Prepared:
    """A study at one scale, which has passed the fairness check.

    Args:
        study: The study, with the seeds to run.
        configs: The config of each row, by the row's name.
        tasks: The study's tasks at this scale.
        out: The folder of the runs and the study page.
        scale: The name of the scale, and what the study trains on.
        command: The command line of the study, without seeds.
        tuned: The options of each row, by row and seed, which a search has chosen.
        models: The digest of each checkpoint file in `from: {files}`, by path.
    """

    study: Study
    configs: Mapping[str, Config]
    tasks: Sequence[str]
    out: Path
    scale: tuple[str, str] = ('', '')
    command: Sequence[str] = ()
    tuned: Mapping[str, Mapping[int, Mapping[str, Any]]] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> dict[str, Row]:
        return {row.name: row for row in self.study.rows}


def resolve_study(
    study: Study,
    scale: Scale,
    tasks: Sequence[str],
    out: Path,
    command: Sequence[str] = (),
) -> Prepared:
    """Apply a scale to a study, add untrained rows, and check that rows are comparable.

    Raises:
        UserError: If the study names an unknown task, if a checkpoint is listed twice, or if two rows differ in an undeclared
            setting.
    """
    load = cache(load_config)  # many rows share a config
    configs = {row.name: resolve(row, scale, load) for row in study.rows}
    # The tasks are checked after the configs are loaded, because configs may register further protocols.
    require_known(tasks)
    if study.tune:  # Only protocols measure held-out images.
        protocol_class(study.tune.criterion)
    networks = dict.fromkeys(cfg.model.backbone.type.rpartition('.')[2] for cfg in configs.values())
    loaders = [cfg.train_dataloader for cfg in configs.values() if 'train_dataloader' in cfg]
    data = dict.fromkeys(innermost(loader.dataset).type for loader in loaders)
    text = f'{", ".join(networks)} on {scale.text or ", ".join(data)}'
    added = tuple(untrained_rows(study.rows, scale, tasks))
    configs |= {row.name: configs[study.rows[0].name] for row in added}
    study = msgspec.structs.replace(study, rows=study.rows + added)
    prepared = Prepared(study, configs, tasks, out, (scale.name, text), command)
    for entry in compare_configs(prepared):
        if entry['undeclared']:
            raise UserError(
                f"row '{entry['row']}' differs from '{entry['on']}' in undeclared keys ({', '.join(entry['undeclared'])}); "
                "make the configs equal in these keys, or add the keys to the row's `declares`",
                code='undeclared-difference',
            )
    return replace(prepared, models=distinct_models(prepared))


def untrained_rows(rows: Sequence[Row], scale: Scale, tasks: Sequence[str]) -> Iterator[Row]:
    """Yield the untrained rows that a scale adds to every study, if one of the tasks can measure them."""
    existing = {row.untrained for row in rows}
    config, options = rows[0].config, rows[0].options
    for kind in scale.untrained:
        row = Row(BASELINES[kind], config, options, factor='no training', untrained=kind)
        if kind not in existing and any(is_measured(row, task) for task in tasks):
            yield row


def changed(one: Config, two: Config) -> list[str]:
    """Return the dotted keys in which two configs differ, if the keys affect training."""
    return differing_keys(_training_keys(one), _training_keys(two))


def _training_keys(cfg: Config) -> dict[str, Any]:
    values = cfg.to_dict()
    keys = {key: values[key] for key in TRAINING if values.get(key) is not None}
    for hook in ('checkpoint', 'logger'):  # These hooks do not affect what a run computes.
        keys.get('default_hooks', {}).pop(hook, None)
    return keys


def differing_keys(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys of nested dictionaries whose values differ."""
    keys = []
    for key in sorted(one.keys() | two.keys()):
        before, after = one.get(key), two.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            keys += [f'{key}.{inner}' for inner in differing_keys(before, after)]
        elif before != after:
            keys.append(key)
    return keys


def compare_configs(prepared: Prepared) -> list[dict[str, Any]]:
    """Compare the config of each row with the config of the row in its `against`.

    Returns:
        A record for each pair of rows. `found` has the keys in which the configs differ. `undeclared` has those that the row
        does not declare and that the study does not tune.
        The training settings of checkpoint files are unknown, so their rows are not compared.
    """
    rows = prepared.rows
    tuned = prepared.study.tune.ranges if prepared.study.tune else ()
    compared = []
    for row in prepared.study.rows:
        if not row.against:
            continue
        base = rows[row.against]
        unknown = bool(row.files or base.files)
        found = [] if unknown else changed(prepared.configs[base.name], prepared.configs[row.name])
        allowed = (*row.declares, *tuned)
        entry = dict(row=row.name, on=base.name, found=found, unknown=unknown)
        entry['undeclared'] = [key for key in found if not is_declared(key, allowed)]
        entry['declares'] = list(row.declares)
        compared.append(entry)
    return compared


def is_declared(key: str, declared: Iterable[str]) -> bool:
    """Return True if the key, or a key that contains it, is declared."""
    prefixes = tuple(f'{prefix}.' for prefix in declared)
    paths = (f'{key}.', f'{key}.'.replace(VIEWS_ON_DEVICE, VIEWS))
    return any(path.startswith(prefixes) for path in paths)


def distinct_models(prepared: Prepared) -> dict[str, str]:
    """Return a digest of each model in `from: {files}`, by path. It does not depend on the file's format.

    Raises:
        UserError: If a file does not fit the network of its row, or if two files contain the same model, which would count as
            two independent runs.
    """
    models: dict[str, str] = {}
    for row in prepared.study.rows:
        for seed in row.files:
            path = given_file(row, seed)
            network = tensors_of(prepared.configs[row.name].model.backbone)
            digest = weights_identity(read_backbone(path, network=network).weights)
            if digest in models.values():
                raise UserError(
                    f"row '{row.name}', seed {seed}: an earlier seed or row has the same model ('{path}'); list it once",
                    code='same-model',
                )
            models[path] = digest
    return models


def given_file(row: Row, seed: int) -> str:
    """Return the absolute path of a row's file or folder with weights, or the name of a released model."""
    name = row.files[seed]
    return name if is_released(name) else str(Path(name).absolute())


def compare_runs(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Compare properties of the finished runs of all rows, such as the number of images seen.

    Returns:
        For each property, its values in the runs of each row, and whether all runs agree.
    """
    compared = []
    for name, key in CHECKS.items():
        values = {row: {str(run.get(key)) for run in runs} for row, runs in results.items()}
        equal = len(set().union(*values.values())) <= 1
        texts = {row: ' / '.join(sorted(found)) for row, found in values.items()}
        compared.append(dict(check=name, equal=equal, values=texts))
    return compared
