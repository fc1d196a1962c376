"""The fairness check: raise an error if compared rows differ in settings that the study does not declare."""

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from mmengine.config import Config

from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.released import is_released
from mmairl.config import by_key, walk
from mmairl.errors import UserError
from mmairl.evaluation.backbone import tensors_of_config
from mmairl.evaluation.identity import weights_identity
from mmairl.io import read_json
from mmairl.study.scale import Scale, description, read_once, resolve
from mmairl.study.study import Row, Study
from mmairl.study.tasks import is_measured, require_known

# The keys of a config that affect what a training run computes.
TRAINING = (
    'model', 'load_from', 'train_dataloader', 'optim_wrapper', 'param_scheduler', 'train_cfg', 'default_hooks',
    'total_batch_size', 'custom_hooks', 'fast',
)  # fmt: skip
# The transforms of views have one config key if the data loader applies them, and another if the device does. A row that
# declares the first key also declares the second one.
VIEWS = 'train_dataloader.dataset.views'
VIEWS_ON_DEVICE = 'model.data_preprocessor.views'
UNTRAINED = dict(pixels='raw pixels', random='random initialization')
# A row that declares one of these keys can differ in anything below it, so its list of differences proves little.
BLANKET = ('model', 'optim_wrapper', 'train_dataloader')
MODELS = 'models.json'  # the digests of the checkpoint files of a study
FileDigest = tuple[int, int, str]
CHECKS = {  # the properties that finished runs of all rows should share, each with its key in the record of a run
    'images seen': 'images_seen',
    'optimizer steps': 'steps',
    'commit': 'commit',
    'source of mmairl': 'source',
    'packages': 'versions',
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
        notes: Sentences about the study at this scale, such as rows that are left out.
        command: The command line of the study, without seeds.
        tuned: The options of each row, by row and seed, which a search has chosen.
        models: The size, modification time and model digest of each checkpoint file in `from: {files}`, by path.
    """

    study: Study
    configs: Mapping[str, Config]
    tasks: Sequence[str]
    out: Path
    scale: tuple[str, str] = ('', '')
    notes: Sequence[str] = ()
    command: Sequence[str] = ()
    tuned: Mapping[str, Mapping[int, Mapping[str, Any]]] = field(default_factory=dict)
    models: Mapping[str, FileDigest] = field(default_factory=dict)

    @property
    def rows(self) -> dict[str, Row]:
        return {row.name: row for row in self.study.rows}


def prepare(
    study: Study,
    scale: Scale,
    tasks: Sequence[str],
    out: Path,
    command: Sequence[str] = (),
) -> Prepared:
    """Apply a scale to a study, leave out rows that become equal, add untrained rows, and check that rows are comparable.

    A row is left out if its runs would equal the runs of an earlier row at this scale, because a difference between the
    scores of the two rows would be pure noise.

    Raises:
        UserError: If the study names an unknown task, if a checkpoint is listed twice, or if two rows differ in an undeclared
            setting.
    """
    read_once.cache_clear()
    configs = {row.name: resolve(row, scale) for row in study.rows}
    equal = equal_rows(study.rows, configs)
    notes = []
    for name, same in equal.items():
        notes.append(
            f"'{name}' is left out, because its runs would equal those of '{same}' at this scale"
        )
    rows = [_renamed(row, equal) for row in study.rows if row.name not in equal]
    if equal and (study.cross or len(rows) < 2):
        raise UserError(
            f'{study.name or study.title}: too few rows are left for a comparison ({notes[0]}); choose another scale',
            code='nothing-to-compare',
        )
    # The tasks are checked after the configs are loaded, because configs may register further protocols.
    require_known(tasks)
    rows += untrained_rows(rows, scale, tasks)
    configs = {row.name: configs.get(row.name, configs[rows[0].name]) for row in rows}
    study = msgspec.structs.replace(study, rows=tuple(rows))
    trained = {row.name: configs[row.name] for row in rows if not row.untrained}
    prepared = Prepared(
        study, configs, tasks, out, (scale.name, description(scale, trained)), notes, command
    )
    require_fair(compare_configs(prepared))
    return replace(prepared, models=distinct_models(prepared))


def equal_rows(rows: Sequence[Row], configs: Mapping[str, Config]) -> dict[str, str]:
    """Return, for each row whose runs would equal those of an earlier row, the name of the earlier row."""
    first: dict[Hashable, str] = {}
    equal: dict[str, str] = {}
    for row in rows:
        row = _renamed(row, equal)
        cfg = configs[row.name]
        source = msgspec.json.encode(row.source) if row.source else row.untrained
        measuring = {key: cfg.get(key) for key in ('evaluation', 'recipes', 'randomness')}
        run = json.dumps({**_training_keys(cfg), **measuring}, sort_keys=True, default=str)
        same = first.setdefault((source, run), row.name)
        if same != row.name:
            equal[row.name] = same
    return equal


def _renamed(row: Row, equal: Mapping[str, str]) -> Row:
    """Replace a row's references to rows that are left out by references to the rows that they equal."""
    source = row.source
    if source and source.row:
        source = msgspec.structs.replace(source, row=equal.get(source.row, source.row))
    against = equal.get(row.against, row.against)
    return msgspec.structs.replace(
        row, against=None if against == row.name else against, source=source
    )


def untrained_rows(rows: Sequence[Row], scale: Scale, tasks: Sequence[str]) -> Iterator[Row]:
    """Yield the untrained rows that a scale adds to every study, if one of the tasks can measure them."""
    existing = {row.untrained for row in rows}
    for kind in scale.untrained:
        row = Row(
            UNTRAINED[kind], rows[0].config, rows[0].options, factor='no training', untrained=kind
        )
        if kind not in existing and any(is_measured(row, task) for task in tasks):
            yield row


def changed(one: Config, two: Config) -> list[str]:
    """Return the dotted keys in which two configs differ, if the keys affect training."""
    return sorted(_differences(_training_keys(one), _training_keys(two), ''))


def _training_keys(cfg: Config) -> dict[str, Any]:
    keys = {}
    for key, value in cfg.to_dict().items():
        if key in TRAINING and value is not None:
            keys[key] = value
    for hook in ('checkpoint', 'logger'):  # These hooks do not affect what a run computes.
        keys.get('default_hooks', {}).pop(hook, None)
    for path, value in list(walk(keys)):
        if path[-1:] == ('views',) and isinstance(value, list | tuple):
            for view in value:
                if isinstance(view, list):
                    view[:] = [step for step in view if step.get('p') != 0]
    return keys


def _differences(one: object, two: object, path: str) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(two, dict):
        for key in one.keys() | two.keys():
            yield from _differences(one.get(key), two.get(key), f'{path}.{key}'.lstrip('.'))
    elif one != two:
        yield path


def compare_configs(prepared: Prepared) -> list[dict[str, Any]]:
    """Compare the config of each row with the config of the row in its `against`.

    Returns:
        A record for each pair of rows. `found` has the keys in which the configs differ. `undeclared` has those that the row
        does not declare and that the study does not tune. `blanket` has the declared keys that cover whole parts of a config.
        The training settings of checkpoint files are unknown, so their rows are not compared.
    """
    rows = prepared.rows
    compared = []
    for row in prepared.study.rows:
        if not row.against:
            continue
        base = rows[row.against]
        unknown = bool(row.files or base.files)
        found = [] if unknown else changed(prepared.configs[base.name], prepared.configs[row.name])
        tuned = tuned_keys(prepared, row) & tuned_keys(prepared, base)
        undeclared = [key for key in found if key not in tuned and not is_declared(key, row)]
        blanket = [key for key in row.declares if key in BLANKET]
        compared.append(
            dict(
                row=row.name,
                on=base.name,
                found=found,
                undeclared=undeclared,
                blanket=blanket,
                unknown=unknown,
            )
        )
    return compared


def tuned_keys(prepared: Prepared, row: Row) -> set[str]:
    """Return the keys of a row's config that the study tunes."""
    if not prepared.study.tune or not row.trains:
        return set()
    return set(prepared.study.tune.keys) & by_key(prepared.configs[row.name]).keys()


def is_declared(key: str, row: Row) -> bool:
    """Return True if a row declares the key, or a key that contains it."""
    prefixes = tuple(f'{prefix}.' for prefix in row.declares)
    paths = (f'{key}.', f'{key}.'.replace(VIEWS_ON_DEVICE, VIEWS))
    return any(path.startswith(prefixes) for path in paths)


def require_fair(compared: Sequence[Mapping[str, Any]]) -> None:
    """Raise an error if a row has undeclared differences from the row in its `against`."""
    for entry in compared:
        if entry['undeclared']:
            raise UserError(
                f"row '{entry['row']}' differs from '{entry['on']}' in undeclared keys ({', '.join(entry['undeclared'])}); "
                "make the configs equal in these keys, or add the keys to the row's `declares`",
                code='undeclared-difference',
            )


def distinct_models(prepared: Prepared) -> dict[str, FileDigest]:
    """Return the digests of all checkpoint files in `from: {files}`. A file that has not changed is not read again.

    Raises:
        UserError: If a file does not fit the network of its row, or if two files contain the same model, which would count as
            two independent runs.
    """
    stored = prepared.out / MODELS
    known = read_json(stored, dict[str, FileDigest]) if stored.is_file() else {}
    models: dict[str, FileDigest] = {}
    seen: dict[str, str] = {}
    for row in prepared.study.rows:
        for seed in row.files:
            path = given_file(row, seed)
            size, time = 0, 0
            if not is_released(path):
                stat = Path(path).stat()
                size, time = stat.st_size, stat.st_mtime_ns
            entry = known.get(path)
            if not entry or entry[:2] != (size, time):
                entry = (size, time, model_digest(path, prepared.configs[row.name]))
            models[path] = entry
            name = f"'{row.name}', seed {seed}"
            if other := seen.get(entry[2]):
                raise UserError(
                    f'{name} and {other} are the same model; list each model once',
                    code='same-model',
                )
            seen[entry[2]] = name
    return models


def given_file(row: Row, seed: int) -> str:
    """Return the absolute path of a row's file or folder with weights, or the name of a released model.

    Raises:
        UserError: If the file does not exist.
    """
    name = row.files[seed]
    if is_released(name):
        return name
    path = Path(name).absolute()
    if not path.exists():
        raise UserError(
            f"row '{row.name}', seed {seed}: checkpoint does not exist ('{path}'); correct its path",
            code='no-checkpoint',
        )
    return str(path)


def model_digest(path: str, cfg: Config) -> str:
    """Return a digest of the model in a checkpoint, which does not depend on the file's format."""
    return weights_identity(read_backbone(path, network=tensors_of_config(cfg)).weights)


def compare_runs(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Compare properties of the finished runs of all rows, such as the number of images seen.

    Returns:
        For each property, its values in the runs of each row, and whether all rows agree. Each module outside the package
        has an entry of its own.
    """
    checks = {
        name: {row: _texts(runs, key) for row, runs in results.items()}
        for name, key in CHECKS.items()
    }
    modules: dict[str, None] = {}
    for runs in results.values():
        for run in runs:
            modules |= dict.fromkeys(run.get('sources') or ())
    for module in modules:
        digests = {row: [run.get('sources') or {} for run in runs] for row, runs in results.items()}
        checks[f'source of {module}'] = {row: _texts(runs, module) for row, runs in digests.items()}
    compared = []
    for name, by_row in checks.items():
        values = {row: text for row, text in by_row.items() if text}
        compared.append(dict(check=name, equal=len(set(values.values())) <= 1, values=values))
    return compared


def _texts(runs: Sequence[Mapping[str, Any]], key: str) -> str:
    return ' / '.join(sorted({str(run[key]) for run in runs if run.get(key) is not None}))
