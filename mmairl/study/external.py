"""Rows of external checkpoints: their factors as their authors state them, next to those of our configs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmairl.checkpoints.load import load_checkpoint
from mmairl.checkpoints.read import weights_file
from mmairl.checkpoints.released import is_released, released_file
from mmairl.config import home
from mmairl.errors import UserError, closest
from mmairl.evaluation.backbone import load_backbone
from mmairl.io import read_yaml
from mmairl.study.factors import factors_of, hidden_factors
from mmairl.study.model_identity import Model, model_at
from mmairl.study.spec import Row

Factors = dict[str, str]
STATED = dict[str, str | int | float | bool | None]
SURE = ('epochs', 'batch', 'optimizer')  # facts of a checkpoint whose names mean the same here
EPOCHS_BEGUN = (
    'loops',
    'fit_loop',
    'epoch_progress',
    'current',
    'ready',
)  # in a checkpoint of Lightning
LIGHTNING = 'pytorch-lightning_version'


def stated_factors(row: Row) -> Factors:
    """Return the factors that the author of a row's checkpoints states. Empty values are not stated."""
    if not row.trained:
        return {}
    candidates = (Path(row.trained), home() / row.trained)
    path = next((path for path in candidates if path.is_file()), row.trained)
    words = {True: 'yes', False: 'no'}  # YAML reads these words as booleans
    stated = {}
    for name, value in read_yaml(path, STATED).items():
        if value is not None:
            stated[name] = words[value] if isinstance(value, bool) else str(value)
    return stated


def training_factors(cfg: Config) -> Factors:
    """Return what one of our configs says of its training, by the names that external checkpoints are stated in."""
    if 'train_cfg' not in cfg:  # a config of an evaluation alone
        return {}
    found = {'library': 'mmairl'}
    if cfg.model.type == 'Siamese':
        found |= factors_of(cfg)
    found |= hidden_factors(cfg)
    found['batch'] = str(cfg.total_batch_size)
    for name in ('epochs', 'iters'):
        if f'max_{name}' in cfg.train_cfg:
            found[name] = str(cfg.train_cfg[f'max_{name}'])
    return found


def compare_stated(
    row: Row, base: Row, configs: Mapping[str, Config]
) -> tuple[list[str], list[str]]:
    """Return the factors in which two rows differ as stated, and those that are not known of both.

    One of the rows, or both, must be of external checkpoints.
    """
    row_factors, base_factors = (known_factors(side, configs) for side in (row, base))
    if not base.weights:
        _require_known_names(row_factors, base_factors, row.trained)
    elif not row.weights:
        _require_known_names(base_factors, row_factors, base.trained)
    names = dict.fromkeys([*base_factors, *row_factors])
    if not names:
        return [], ['every factor']
    unknown = [name for name in names if name not in row_factors or name not in base_factors]
    differing = [
        name for name in names if name not in unknown and row_factors[name] != base_factors[name]
    ]
    return differing, unknown


def known_factors(row: Row, configs: Mapping[str, Config]) -> Factors:
    return stated_factors(row) if row.weights else training_factors(configs[row.name])


def _require_known_names(stated: Factors, known: Factors, path: str) -> None:
    for name in stated:
        if name not in known:
            near = closest(name, known, 0.6)
            raise UserError(
                f"{path}: '{name}' is not a factor{near}; use one of {', '.join(known)}",
                code='unknown-factor',
            )


def require_distinct_models(rows: Sequence[Row], configs: Mapping[str, Config] = {}) -> None:
    """Raise if a model is given twice, in whatever file format or precision: its runs would count as two seeds.

    Files that cannot be read are left to `require_networks`.
    """
    seen: dict[str, Model] = {}
    for row, seed in external_runs(rows):
        name = f"'{row.name}', seed {seed}"
        try:
            model = model_at(checkpoint_path(row, seed), configs.get(row.name))
        except (OSError, UserError):
            continue
        for other, earlier in seen.items():
            if model.weights == earlier.weights:
                raise UserError(
                    f'{name} and {other} are the same model; give each model once',
                    code='same-model',
                )
            if model.is_near(earlier):
                raise UserError(
                    f'{name} is a near-duplicate of {other}: the weights agree within half precision; give each '
                    'model once',
                    code='near-duplicate-model',
                )
        seen[name] = model


def external_runs(rows: Sequence[Row]) -> Iterator[tuple[Row, int]]:
    """Yield each row of external checkpoints with each of its seeds."""
    for row in rows:
        for seed in row.weights:
            yield row, seed


def checkpoint_path(row: Row, seed: int) -> str:
    """Return the absolute path of a checkpoint: of the weights in a folder, or of a released model's file in the cache.

    Raises:
        UserError: If it does not exist.
    """
    name = row.weights[seed]
    path = Path(released_file(name) if is_released(name) else weights_file(name)).absolute()
    if not path.is_file():
        raise UserError(
            f"row '{row.name}', seed {seed}: checkpoint does not exist ('{path}'); correct its path",
            code='no-checkpoint',
        )
    return str(path)


def require_networks(rows: Sequence[Row], configs: Mapping[str, Config]) -> None:
    """Raise if a checkpoint does not fill its row's network, before anything runs."""
    for row, seed in external_runs(rows):
        load_backbone(configs[row.name], checkpoint_path(row, seed))


def form(row: Row, base_factors: Mapping[str, str]) -> str:
    """Return a YAML to fill in for a row's checkpoints, with the facts in its checkpoint and the factors of its base."""
    facts = facts_of(checkpoint_path(row, min(row.weights)))
    listed = ', '.join(f'{name} {value}' for name, value in facts.items()) or 'nothing'
    lines = [
        f'# {row.name}: state what you know and leave the rest empty. The comment after each name is the base row.',
        f'# The checkpoint says: {listed}',
    ]
    stated = {name: facts[name] for name in SURE if name in facts} | stated_factors(row)
    for name, of_base in {**dict.fromkeys(stated, ''), **base_factors}.items():
        value = f' {stated[name]}' if name in stated else ''
        lines.append(f'{name}:{value}  # {of_base}')
    return '\n'.join(lines)


def facts_of(path: str) -> Factors:
    """Return what a checkpoint says of its training: epochs, steps, optimizer, rate, versions."""
    loaded = load_checkpoint(path)
    facts: dict[str, Any] = {
        'epochs': _epochs(loaded),
        'steps': loaded.get('global_step'),
        'Lightning': loaded.get(LIGHTNING),
        'optimizer': _optimizer(loaded),
    }
    if isinstance(settings := loaded.get('hyper_parameters'), dict):
        facts |= {
            name: value for name, value in settings.items() if isinstance(value, str | int | float)
        }
    return {str(name): str(value) for name, value in facts.items() if value is not None}


def _epochs(loaded: Mapping[str, Any]) -> int | None:
    epoch = loaded.get('epoch')
    if not isinstance(epoch, int):
        return None
    begun: Any = loaded
    for key in EPOCHS_BEGUN:
        begun = begun.get(key) if isinstance(begun, dict) else None
    return begun or epoch + (
        LIGHTNING in loaded
    )  # Lightning counts from 0, and one further when all have ended


def _optimizer(loaded: Mapping[str, Any]) -> str | None:
    """Return the settings of the first parameter group."""
    states = loaded.get('optimizer_states') or [loaded.get('optimizer')]
    state = states[0] if isinstance(states, list) else None
    groups = state.get('param_groups') if isinstance(state, dict) else None
    if not isinstance(groups, list) or not groups or not isinstance(groups[0], dict):
        return None
    group = groups[0]
    settings = dict(
        group, lr=group.get('initial_lr', group.get('lr')), decay=group.get('weight_decay')
    )
    names = [name for name in ('lr', 'decay', 'momentum', 'betas') if name in settings]
    return ', '.join(f'{name} {settings[name]}' for name in names)
