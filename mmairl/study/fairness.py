"""The fairness check: raise an error if compared rows differ in settings that the study does not declare.

A row of a study is one configuration, usually trained with several seeds. A search tunes a row by trials, which are runs
with different options. A scale is a set of changes that make all configs of a study smaller.
"""

import json
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain, product
from typing import Any

from msgspec.structs import replace

from mmairl.errors import UserError
from mmairl.evaluation.protocol import settings_for
from mmairl.evaluation.sets import held_out
from mmairl.study.external import compare_stated, require_distinct_models
from mmairl.study.factors import Configs, changed, same_run
from mmairl.study.fork_rows import require_forkable
from mmairl.study.scale import Scale, load_row, read_once, resolve
from mmairl.study.search import own_value, searched_keys
from mmairl.study.spec import Row, Study
from mmairl.study.task_names import data_of, is_local, is_measured, protocol_of

# The transforms of views have one config key if the data loader applies them, and another if the device does. A row that
# declares the first key also declares the second one.
VIEWS = 'train_dataloader.dataset.views'
VIEWS_ON_DEVICE = 'model.data_preprocessor.views'
NULL_ROWS = dict(pixels='raw pixels', random='random initialisation')
CHECKS = {  # the checks of finished runs, each with the key whose value must be equal in the records of all runs
    'images seen': 'images_seen',
    'optimizer steps': 'steps',
    'evaluation': 'evaluation',
    'software': 'versions',
    'code': 'git',
}

Results = Mapping[str, Sequence[Mapping[str, Any]]]  # the finished runs of each row


def at_scale(study: Study, scale: Scale, tasks: Sequence[str]) -> tuple[Study, Configs, list[str]]:
    """Apply a scale to a study: change the configs, leave out rows that become equal, and add the scale's untrained rows.

    A row is left out if its runs would equal the runs of an earlier row at this scale, because a difference between the
    scores of the two rows would be pure noise. A factor of a factorial design is left out if its levels become equal at
    the scale.

    Returns:
        The study at this scale, the config of each row by name, and a sentence about each row or factor that is left out.
    """
    read_once.cache_clear()
    study, left_out = without_empty_factors(study, scale)
    configs = {row.name: resolve(row, scale) for row in study.rows}
    require_unscaled(study, configs, scale)
    require_distinct_models(study.rows, configs)
    require_forkable(study.rows, configs)
    equal = equal_rows(study, configs)
    for name, same in equal.items():
        left_out.append(
            f"'{name}' is left out: at the scale {scale.name}, its runs would equal those of '{same}'"
        )
    rows = [_renamed(row, equal) for row in study.rows if row.name not in equal]
    comparable = sum(row.trains for row in rows) > 1
    if equal and (study.design or not comparable):
        raise UserError(
            f'{study.name or study.title}: too few rows are left for a comparison at this scale ({left_out[0]}); choose '
            'another scale',
            code='nothing-to-compare',
        )
    rows += null_rows(rows, scale, tasks)
    configs = {row.name: configs.get(row.name, configs[rows[0].name]) for row in rows}
    require_clean_choices(study, configs, tasks)
    looks = []
    for look in study.look:
        looks.append(replace(look, rows=tuple(equal.get(name, name) for name in look.rows)))
    return replace(study, rows=tuple(rows), look=tuple(looks)), configs, left_out


def require_unscaled(study: Study, configs: Configs, scale: Scale) -> None:
    """Raise an error if the scale changes a key that the study lists in `unscaled`.

    The study's question is about these keys, so the result at such a scale would not answer the question.
    """
    for row, key in product(study.rows, study.unscaled):
        full, scaled = (own_value(cfg, key) for cfg in (load_row(row), configs[row.name]))
        if json.dumps(full, default=str) != json.dumps(scaled, default=str):
            raise UserError(
                f"{study.name or study.title}: the study's question is about {key}, but the scale {scale.name} changes this "
                f"key in the row '{row.name}'; choose a larger scale, such as in1k",
                code='scale-changes-question',
            )


def equal_rows(study: Study, configs: Configs) -> dict[str, str]:
    """Find the rows whose runs would equal those of an earlier row.

    Returns:
        For each of these rows, the name of the earlier row.
    """
    first: dict[Hashable, str] = {}
    equal: dict[str, str] = {}
    for row in study.rows:
        row = _renamed(row, equal)
        key: Hashable = row.rescaled or row.along
        if row.weights:
            key = row.name
        elif not key:
            run = same_run(configs[row.name])
            changes_trunk = row.fork and run != same_run(configs[row.fork.of])
            key = (row.untrained, str(row.search), run, row.fork if changes_trunk else None)
        same = first.setdefault(key, row.name)
        if same != row.name:
            equal[row.name] = same
    return equal


def null_rows(rows: Sequence[Row], scale: Scale, tasks: Sequence[str]) -> list[Row]:
    """Return the untrained baseline rows that a scale adds to every study, if one of the tasks can measure them."""
    base = Row('', rows[0].config, rows[0].options, factor='no training')
    existing = {row.untrained for row in rows}
    added = []
    for kind in scale.floor:
        if kind not in existing and any(is_measured(kind, task) for task in tasks):
            added.append(replace(base, name=NULL_ROWS[kind], untrained=kind))
    return added


def require_clean_choices(study: Study, configs: Configs, tasks: Sequence[str]) -> None:
    """Raise an error if a search or a task would choose its settings by test images.

    This check reads only the configs. Later, the worker process of each run also checks that no test image is among the
    images by which settings are chosen.
    """
    for cfg in configs.values():
        chosen_on = [cfg] if study.search else []
        for task in filter(is_local, tasks):
            data = data_of(task) or cfg
            protocol = settings_for(protocol_of(task), data)
            if protocol.chooses(data, trials=task in study.tune):
                chosen_on.append(data)
        for data in chosen_on:
            if {'train', 'test'} <= data.get('evaluation', {}).keys():
                held_out(data.evaluation)


def without_empty_factors(study: Study, scale: Scale) -> tuple[Study, list[str]]:
    """Remove the factors of a factorial design whose levels are equal at this scale.

    If this would remove all factors, none is removed. `at_scale` then detects the rows that become equal.

    Returns:
        The study without these factors, and a sentence about each of them.
    """
    if not study.cross:
        return study, []
    base = study.rows[0]
    empty = []
    for factor in study.cross.factors:
        levels = [base.options | options for options in factor.levels.values()]
        runs = {same_run(resolve(replace(base, options=level), scale)) for level in levels}
        if len(runs) == 1:
            empty.append(factor.name)
    if len(empty) in (0, len(study.cross.factors)):
        return study, []
    cross = study.cross.without(empty)
    reason = f'is left out: at the scale {scale.name}, its levels are the same'
    left_out = [f"the factor '{name}' {reason}" for name in empty]
    return replace(study, cross=cross, rows=tuple(cross.rows())), left_out


def _renamed(row: Row, equal: Mapping[str, str]) -> Row:
    """Replace a row's references to rows that are left out by references to the rows that they equal.

    Args:
        row: The row.
        equal: For each row that is left out, the name of the earlier row that it equals.
    """
    others = {key: equal.get(name, name) for key, name in row.others.items()}
    changes: dict[str, Any] = dict(against=equal.get(row.against, row.against))
    for key in ('rescaled', 'along', 'fork'):
        if created := getattr(row, key):
            changes[key] = replace(created, **others)
    return replace(row, **changes)


def compare_configs(study: Study, configs: Configs) -> list[dict[str, Any]]:
    """Compare the config of each row with the config of the row in its `against`.

    Returns:
        A record for each pair of rows. `declared` has the keys that the row declares. `found` has the keys in which the
        configs differ. `searched` has the keys whose values are tuned by the search in both rows. `undeclared` has the keys
        that differ although they are neither declared nor searched in both rows. If a row has external checkpoints, the
        factors that their authors state are compared in place of config keys. `unknown` has the factors that are unknown for
        one or both of the rows.
    """
    rows = {row.name: row for row in study.rows}
    searched = searched_keys(study.search, study.rows, configs)
    compared = []
    for row in study.rows:
        if not row.against:
            continue
        base = rows[row.against]
        unknown: list[str] = []
        if row.weights or base.weights:
            differing, unknown = compare_stated(row, base, configs)
        else:
            differing = changed(configs[base.name], configs[row.name])
        both = searched[row.name] & searched[base.name]
        comparison = dict(
            row=row.name,
            on=base.name,
            declared=list(row.declares),
            found=differing,
            searched=sorted(both),
            undeclared=[key for key in differing if not (key in both or is_declared(key, row))],
            unknown=unknown,
        )
        compared.append(comparison)
    return compared


def is_declared(key: str, row: Row) -> bool:
    """Return True if a row declares the key, or a key that contains it."""
    prefixes = tuple(f'{prefix}.' for prefix in row.declares)
    paths = (f'{key}.', f'{key}.'.replace(VIEWS_ON_DEVICE, VIEWS))
    return any(path.startswith(prefixes) for path in paths)


def require_fair(compared: Sequence[dict[str, Any]]) -> None:
    """Raise an error if a row has undeclared differences from the row in its `against`."""
    for entry in compared:
        if entry['undeclared']:
            raise UserError(
                f"row '{entry['row']}' differs from '{entry['on']}' in undeclared keys ({', '.join(entry['undeclared'])}); "
                "make the configs equal in these keys, or add the keys to the row's `declares`",
                code='undeclared-difference',
            )


def after(results: Results) -> list[dict[str, Any]]:
    """Check that the finished runs of all rows agree in the number of images seen, steps, evaluation, software and code.

    The check of the code fails if a run did not record the source code of its training or of a task. Each module outside
    the package has a check of its own.
    """
    checks = [_equal(name, key, results) for name, key in CHECKS.items()]
    unverified = {}
    sources = {}
    modules = set()
    for row, runs in results.items():
        parts = {part for run in runs for part in run.get('unverified', ())}
        if parts:
            unverified[row] = ', '.join(sorted(parts))
        sources[row] = [run.get('sources') or {} for run in runs]
        modules.update(*sources[row])
    if unverified:
        checks[-1] |= dict(equal=False, unverified=unverified)
    return checks + [_equal(f'source of {name}', name, sources) for name in sorted(modules)]


def hidden(results: Results) -> list[dict[str, Any]]:
    """Check that the finished runs of all rows have equal values of the factors that papers seldom print.

    The runs recorded these values; see `factors.hidden_factors`.
    """
    recorded = {row: [run.get('hidden', {}) for run in runs] for row, runs in results.items()}
    names = dict.fromkeys(chain.from_iterable(chain.from_iterable(recorded.values())))
    checks = [_equal(name, name, recorded) for name in names]
    for check in checks:
        check['equal'] &= len(check['values']) == len(recorded)
    return checks


def _equal(name: str, key: str, results: Results) -> dict[str, Any]:
    """Return the record of one check: the values of a key in the runs of each row, and whether all rows agree."""
    texts = {}
    for row, runs in results.items():
        if values := sorted({str(run[key]) for run in runs if key in run}):
            texts[row] = ' / '.join(values)
    return dict(check=name, equal=len(set(texts.values())) <= 1, values=texts)
