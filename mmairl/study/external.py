"""External checkpoints in a study: checkpoints that were trained elsewhere, with other code.

A row of a study is one configuration, usually trained with several seeds. A row can also consist of external checkpoints.
Their configs are unknown, so the fairness check compares the factors of training that their authors state with the factors of
the other rows.
"""

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
from mmairl.study.factors import Configs, factors_of, hidden_factors
from mmairl.study.model_identity import Model, model_at
from mmairl.study.spec import Row

Factors = dict[str, str]
STATED = dict[str, str | int | float | bool | None]
# The names of factors that are also names of facts in checkpoints; see `facts_of`.
SAME_NAMES = ('epochs', 'batch', 'optimizer')
LIGHTNING = (
    'pytorch-lightning_version'  # the key by which checkpoints of PyTorch Lightning are recognized
)


def stated_factors(row: Row) -> Factors:
    """Return the factors that the authors of a row's checkpoints state. Factors without a value are left out as unknown."""
    if not row.trained:
        return {}
    candidates = (Path(row.trained), home() / row.trained)
    path = next((path for path in candidates if path.is_file()), row.trained)
    stated = {}
    for name, value in read_yaml(path, STATED).items():
        if isinstance(value, bool):  # YAML reads the words `yes` and `no` as booleans.
            stated[name] = 'yes' if value else 'no'
        elif value is not None:
            stated[name] = str(value)
    return stated


def training_factors(cfg: Config) -> Factors:
    """Return the training factors of a config. The stated factors of external checkpoints must have the same names."""
    if 'train_cfg' not in cfg:  # A config without `train_cfg` is only for evaluation.
        return {}
    factors = {'library': 'mmairl'}
    if cfg.model.type == 'Siamese':
        factors |= factors_of(cfg)
    factors |= hidden_factors(cfg)
    factors['batch'] = str(cfg.total_batch_size)
    for name in ('epochs', 'iters'):
        if f'max_{name}' in cfg.train_cfg:
            factors[name] = str(cfg.train_cfg[f'max_{name}'])
    return factors


def compare_stated(row: Row, base: Row, configs: Configs) -> tuple[list[str], list[str]]:
    """Compare two rows, at least one of which has external checkpoints.

    Returns:
        The names of the factors in which the rows differ, and the names of the factors that are unknown for one or both rows.

    Raises:
        UserError: If one of the rows is trained by mmairl, and the authors of the external checkpoints state a factor that
            the row trained by mmairl does not have.
    """
    row_factors = known_factors(row, configs)
    base_factors = known_factors(base, configs)
    if not base.weights:
        _require_known_names(row_factors, base_factors, row.trained)
    elif not row.weights:
        _require_known_names(base_factors, row_factors, base.trained)
    names = dict.fromkeys([*base_factors, *row_factors])
    if not names:
        return [], ['every factor']
    known = [name for name in names if name in row_factors and name in base_factors]
    differing = [name for name in known if row_factors[name] != base_factors[name]]
    return differing, [name for name in names if name not in known]


def known_factors(row: Row, configs: Configs) -> Factors:
    """Return the factors of a row that are stated by the authors of its checkpoints, or by its config."""
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
    """Raise an error if two external checkpoints contain the same model, in any file format or precision.

    The statistics treat checkpoints as independent runs, so a model that is listed twice would count as two runs.
    Unreadable files are skipped here, because `require_networks` reports them.
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
                    f'{name} and {other} are the same model; list each model once',
                    code='same-model',
                )
            if model.is_near(earlier):
                raise UserError(
                    f'{name} is a near-duplicate of {other}, because their weights agree within the rounding errors of half '
                    'precision; list each model once',
                    code='near-duplicate-model',
                )
        seen[name] = model


def external_runs(rows: Sequence[Row]) -> Iterator[tuple[Row, int]]:
    """Yield each pair of a row with external checkpoints and one of its seeds."""
    for row in rows:
        for seed in row.weights:
            yield row, seed


def checkpoint_path(row: Row, seed: int) -> str:
    """Return the absolute path of the external checkpoint of one seed.

    The row can name a file, a folder that contains weights, or a released model, which is downloaded once.

    Raises:
        UserError: If the checkpoint does not exist.
    """
    name = row.weights[seed]
    path = Path(released_file(name) if is_released(name) else weights_file(name)).absolute()
    if not path.is_file():
        raise UserError(
            f"row '{row.name}', seed {seed}: checkpoint does not exist ('{path}'); correct its path",
            code='no-checkpoint',
        )
    return str(path)


def require_networks(rows: Sequence[Row], configs: Configs) -> None:
    """Raise an error if an external checkpoint does not fit the network in its row's config."""
    for row, seed in external_runs(rows):
        load_backbone(configs[row.name], checkpoint_path(row, seed))


def factor_form(row: Row, base_factors: Mapping[str, str]) -> str:
    """Return a YAML form in which users state the factors of a row's checkpoints.

    The factors that the authors have already stated, or that are known from the first checkpoint, are filled in. The
    comments in the form show the factors of the row with which this row is compared.
    """
    facts = facts_of(checkpoint_path(row, min(row.weights)))
    listed = ', '.join(f'{name} {value}' for name, value in facts.items()) or 'nothing'
    lines = [
        f'# {row.name}: fill in the factors that you know, and leave the others empty. The comments show the factors of the '
        'row with which this row is compared.',
        f'# The checkpoint contains these facts about its training: {listed}',
    ]
    stated = {name: facts[name] for name in SAME_NAMES if name in facts} | stated_factors(row)
    for name, of_base in {**dict.fromkeys(stated, ''), **base_factors}.items():
        value = f' {stated[name]}' if name in stated else ''
        lines.append(f'{name}:{value}  # {of_base}')
    return '\n'.join(lines)


def facts_of(path: str) -> Factors:
    """Return what a checkpoint contains about its training, such as epochs, steps and the optimizer."""
    loaded = load_checkpoint(path)
    facts: dict[str, Any] = {
        'epochs': _epochs(loaded),
        'steps': loaded.get('global_step'),
        'Lightning': loaded.get(LIGHTNING),
        'optimizer': _optimizer(loaded),
    }
    if isinstance(settings := loaded.get('hyper_parameters'), dict):
        for name, value in settings.items():
            if isinstance(value, str | int | float):
                facts[name] = value
    known = {name: value for name, value in facts.items() if value is not None}
    return {str(name): str(value) for name, value in known.items()}


def _epochs(loaded: Mapping[str, Any]) -> int | None:
    """Return the number of epochs that a checkpoint was trained for, or None.

    In Lightning's checkpoints, `epoch` counts from 0, and `ready` is the number of epochs that have begun.
    """
    epoch = loaded.get('epoch')
    if not isinstance(epoch, int):
        return None
    if LIGHTNING not in loaded:
        return epoch
    try:
        return loaded['loops']['fit_loop']['epoch_progress']['current']['ready'] or epoch + 1
    except (KeyError, TypeError):
        return epoch + 1


def _optimizer(loaded: Mapping[str, Any]) -> str | None:
    """Return a text with the optimizer's settings of the first parameter group, or None if the file lacks them."""
    try:
        state = (loaded.get('optimizer_states') or [loaded['optimizer']])[0]
        group = state['param_groups'][0]
        settings = dict(
            group, lr=group.get('initial_lr', group.get('lr')), decay=group.get('weight_decay')
        )
    # These errors mean that the file has no optimizer state, or has it in another format.
    except (AttributeError, IndexError, KeyError, TypeError):
        return None
    names = [name for name in ('lr', 'decay', 'momentum', 'betas') if name in settings]
    return ', '.join(f'{name} {settings[name]}' for name in names)
