"""Rows of networks that were trained elsewhere: their factors as their author states them, beside those of our configs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmairl.checkpoints.load import load_checkpoint
from mmairl.config import home
from mmairl.errors import UserError, closest
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.identity import Model, model_at
from mmairl.io import read_yaml
from mmairl.study.factors import factors_of, hidden_factors
from mmairl.study.spec import Row

STATED = dict[str, str | int | float | bool | None]
SURE = ('epochs', 'batch', 'optimizer')  # what a checkpoint says under a name that means the same here
SAME = 'of these networks, not of one factor'


def stated_factors(row: Row) -> dict[str, str]:
    """Return what the author of a row's networks states of them; what is left empty is not stated."""
    path = next((path for path in (Path(row.trained), home() / row.trained) if path.is_file()), row.trained)
    stated = read_yaml(path, STATED) if row.trained else {}
    words = {True: 'yes', False: 'no'}  # what YAML makes of these
    known = {name: value for name, value in stated.items() if value is not None}
    return {name: words[value] if isinstance(value, bool) else str(value) for name, value in known.items()}


def factors(cfg: Config) -> dict[str, str]:
    """Return all that a config of ours says of its training, by the names in which a network from elsewhere is stated."""
    if 'train_cfg' not in cfg:  # of an evaluation alone
        return {}
    own = factors_of(cfg) if cfg.model.type == 'Siamese' else {}
    length = {name: str(cfg.train_cfg[f'max_{name}']) for name in ('epochs', 'iters') if f'max_{name}' in cfg.train_cfg}
    return {'library': 'mmairl', **own, **hidden_factors(cfg), 'batch': str(cfg.total_batch_size), **length}


def compare_stated(row: Row, base: Row, configs: Mapping[str, Config]) -> tuple[list[str], list[str]]:
    """Return the factors in which two rows, one or both from elsewhere, differ as stated, and those not known of both."""
    own, other = (stated_factors(side) if side.weights else factors(configs[side.name]) for side in (row, base))
    if not (row.weights and base.weights):
        stated, known, path = (own, other, row.trained) if row.weights else (other, own, base.trained)
        if strange := next((name for name in stated if name not in known), ''):
            raise UserError(
                f"{path} states '{strange}', which is no factor{closest(strange, known, 0.6)}; there are {', '.join(known)}"
            )
    names = dict.fromkeys([*other, *own])
    unknown = [name for name in names if name not in own or name not in other]
    differing = [name for name in names if name not in unknown and own[name] != other[name]]
    return differing, unknown if names else ['every factor']


def require_distinct(rows: Sequence[Row]) -> None:
    """Raise if a model is given twice, in whatever file format or precision: its runs would count as two seeds.

    Files that cannot be read are left to `require_networks`.
    """
    seen: dict[str, Model] = {}
    for row in rows:
        for seed, path in row.weights.items():
            name = f"'{row.name}', seed {seed}"
            try:
                model = model_at(path)
            except (OSError, UserError):
                continue
            for other, earlier in seen.items():
                if model.weights == earlier.weights:
                    raise UserError(f'{name} and {other} are the same model; give each model once', code='same-model')
                if model.is_near(earlier):
                    raise UserError(
                        f'{name} is a near-duplicate of {other}: the weights agree within half precision; give each '
                        'model once',
                        code='near-duplicate-model',
                    )
            seen[name] = model


def whole_path(row: Row, seed: int) -> str:
    """Return the absolute path of a checkpoint, which must be there."""
    path = Path(row.weights[seed]).absolute()
    if not path.is_file():
        raise UserError(f"'{row.name}', seed {seed}: there is no checkpoint at {path}; correct its path, or make it")
    return str(path)


def require_networks(rows: Sequence[Row], configs: Mapping[str, Config]) -> None:
    """Refuse a checkpoint whose weights do not fill its row's network, before anything is run."""
    for row in rows:
        for seed in row.weights:
            load_backbone(configs[row.name], whole_path(row, seed))


def form(row: Row, beside: Mapping[str, str]) -> str:
    """Return a YAML to fill in for a row's networks: what their checkpoint says itself, and what the row beside it has."""
    known = facts_of(whole_path(row, min(row.weights)))
    says = ', '.join(f'{name} {value}' for name, value in known.items()) or 'nothing'
    lines = [
        f'# {row.name}: state what you know, and leave the rest empty. Behind each name: what the row beside it has.',
        f'# The checkpoint says: {says}',
    ]
    stated = {**{name: known[name] for name in SURE if name in known}, **stated_factors(row)}
    for name, ours in {**dict.fromkeys(stated, ''), **beside}.items():
        lines.append(f'{name}: {stated[name]}  # {ours}' if name in stated else f'{name}:  # {ours}')
    return '\n'.join(lines)


def facts_of(path: str) -> dict[str, str]:
    """Return what a checkpoint says of its training beside the weights: epochs, steps, optimizer, rate, versions."""
    loaded = load_checkpoint(path)
    facts: dict[str, Any] = {}
    begun: Any = loaded
    for key in ('loops', 'fit_loop', 'epoch_progress', 'current', 'ready'):
        begun = begun.get(key) if isinstance(begun, dict) else None
    if isinstance(epoch := loaded.get('epoch'), int):  # Lightning counts from 0, and one further when all have ended
        facts['epochs'] = begun or epoch + ('pytorch-lightning_version' in loaded)
    facts['steps'] = loaded.get('global_step')
    facts['Lightning'] = loaded.get('pytorch-lightning_version')
    states = loaded.get('optimizer_states') or [loaded.get('optimizer')]
    groups = states[0].get('param_groups') if isinstance(states, list) and isinstance(states[0], dict) else None
    if isinstance(groups, list) and groups and isinstance(groups[0], dict):
        said = dict(groups[0], lr=groups[0].get('initial_lr', groups[0].get('lr')), decay=groups[0].get('weight_decay'))
        known = [name for name in ('lr', 'decay', 'momentum', 'betas') if name in said]
        facts['optimizer'] = ', '.join(f'{name} {said[name]}' for name in known)
    if isinstance(given := loaded.get('hyper_parameters'), dict):
        facts |= {name: value for name, value in given.items() if isinstance(value, (str, int, float))}
    return {str(name): str(value) for name, value in facts.items() if value is not None}
