"""Rows of networks that were trained elsewhere: their factors as their author states them, beside those of our configs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmairl.configs import home
from mmairl.errors import UserError, closest
from mmairl.files import read_yaml
from mmairl.study.factors import factors_of, hidden_factors
from mmairl.study.measure import sha256
from mmairl.study.spec import Row
from mmairl.weights.load import load_checkpoint

STATED = dict[str, str | int | float | bool | None]
SURE = ('epochs', 'batch', 'optimizer')  # what a checkpoint says under a name that means the same here
SAME = 'of these networks, not of one factor'


def stated_factors(row: Row) -> dict[str, str]:
    """Return what the author of a row's networks states of them; what is left empty is not stated."""
    path = next((path for path in (Path(row.trained), home() / row.trained) if path.is_file()), row.trained)
    stated = read_yaml(path, STATED) if row.trained else {}
    words = {True: 'yes', False: 'no'}  # what YAML makes of these
    said = {
        name: words[value] if isinstance(value, bool) else str(value)
        for name, value in stated.items()
        if value is not None
    }
    return said


def factors(cfg: Config) -> dict[str, str]:
    """Return all that a config of ours says of its training, by the names in which a network from elsewhere is stated."""
    own = factors_of(cfg) if cfg.model.type == 'Siamese' else {}
    length = {
        key.removeprefix('max_'): str(cfg.train_cfg[key]) for key in ('max_epochs', 'max_iters') if key in cfg.train_cfg
    }
    return {'library': 'mmairl', **own, **hidden_factors(cfg), 'batch': str(cfg.total_batch_size), **length}


def compare_stated(row: Row, base: Row, configs: dict[str, Config]) -> dict[str, Any]:
    """Compare two rows, one or both from elsewhere, by what is stated: factors that differ, and those that are not known."""
    sides = [stated_factors(side) if side.weights else factors(configs[side.name]) for side in (row, base)]
    names = dict.fromkeys(name for side in reversed(sides) for name in side)
    for side, stated in zip((row, base), sides):
        known = sides[0] if side is base else sides[1]
        ours = not (row.weights and base.weights)
        if side.weights and ours and (strange := [name for name in stated if name not in known]):
            raise UserError(
                f"{side.trained} states '{strange[0]}', which is no factor{closest(strange[0], known, 0.6)}; "
                f'there are {", ".join(known)}'
            )
    differing = [name for name in names if len({side[name] for side in sides if name in side}) > 1]
    return dict(
        row=row.name,
        on=base.name,
        declared=list(row.declares),
        found=differing,
        searched=[],
        unknown=[name for name in names if any(name not in side for side in sides)]
        or ([] if names else ['every factor']),
        undeclared=[name for name in differing if name not in row.declares],
    )


def require_distinct(rows: Sequence[Row]) -> None:
    """Refuse a checkpoint that is given twice: its run would count as two."""
    seen: dict[str, str] = {}
    for row in rows:
        for seed, path in row.weights.items():
            name = f"'{row.name}', seed {seed}"
            if Path(path).is_file() and (other := seen.setdefault(sha256(Path(path)), name)) != name:
                raise UserError(f'{name} and {other} are the same file; give each network once')


def whole_path(row: Row, seed: int) -> str:
    """Return the absolute path of a checkpoint, which must be there."""
    path = Path(row.weights[seed]).absolute()
    if not path.is_file():
        raise UserError(f"'{row.name}', seed {seed}: there is no checkpoint at {path}; correct its path, or make it")
    return str(path)


def form(row: Row, base: Config) -> str:
    """Return a YAML to fill in for a row's networks: what their checkpoint says itself, and what a config of ours has there."""
    known = facts_of(whole_path(row, min(row.weights)))
    lines = [
        f'# {row.name}: state what you know, and leave the rest empty. Behind each name: what the row beside it has.'
    ]
    lines += (
        [f'# The checkpoint says: {", ".join(f"{name} {value}" for name, value in known.items())}'] if known else []
    )
    stated = {**{name: known[name] for name in SURE if name in known}, **stated_factors(row)}
    for name, ours in factors(base).items():
        lines.append(f'{name}: {stated[name]}  # {ours}' if name in stated else f'{name}:  # {ours}')
    return '\n'.join(lines)


def facts_of(path: str) -> dict[str, str]:
    """Return what a checkpoint says of its training beside the weights: epochs, steps, optimizer, rate, versions."""
    loaded = load_checkpoint(path)
    facts: dict[str, Any] = {}
    if isinstance(epoch := loaded.get('epoch'), int):
        facts['epochs'] = epoch + ('pytorch-lightning_version' in loaded)  # Lightning counts from 0
    facts['steps'] = loaded.get('global_step')
    facts['Lightning'] = loaded.get('pytorch-lightning_version')
    states = loaded.get('optimizer_states') or [loaded.get('optimizer')]
    groups = states[0].get('param_groups') if isinstance(states, list) and isinstance(states[0], dict) else None
    if isinstance(groups, list) and groups and isinstance(groups[0], dict):
        said = dict(groups[0], lr=groups[0].get('initial_lr', groups[0].get('lr')), decay=groups[0].get('weight_decay'))
        facts['optimizer'] = ', '.join(
            f'{name} {said[name]}' for name in ('lr', 'decay', 'momentum', 'betas') if name in said
        )
    given = loaded.get('hyper_parameters')
    facts |= (
        {name: value for name, value in given.items() if isinstance(value, (str, int, float))}
        if isinstance(given, dict)
        else {}
    )
    return {str(name): str(value) for name, value in facts.items() if value is not None}
