"""Fairness, made executable: two rows differ in what the study declares, and in nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.config import Config
from msgspec.structs import replace

from mmairl.errors import UserError
from mmairl.evaluation.protocol import settings_for
from mmairl.evaluation.sets import held_out
from mmairl.study.external import compare_stated, require_distinct
from mmairl.study.factors import changed, same_run
from mmairl.study.measure import data_of, is_local, measures, protocol_name
from mmairl.study.scale import Scale, resolve
from mmairl.study.search import searched_keys
from mmairl.study.spec import Row, Study

# Where a scale, or a config, has the views made on the device, they stand in another place.
VIEWS, VIEWS_ON_DEVICE = 'train_dataloader.dataset.views', 'model.data_preprocessor.views'
FLOOR = dict(pixels='raw pixels', random='random initialisation')


def at_scale(study: Study, scale: Scale, tasks: Sequence[str]) -> tuple[Study, dict[str, Config], list[str]]:
    """Return the study as it runs at a scale, with the scale's null rows, its configs, and what is left out.

    A row that the scale makes equal to another would tell noise as a factor's effect: it is left out, with a sentence. So is a
    factor of a cross whose levels the scale makes equal.
    """
    study, said = without_empty_factors(study, scale)
    configs = {row.name: resolve(row, scale) for row in study.rows}
    require_distinct(study.rows)
    first: dict[Any, str] = {}
    equal: dict[str, str] = {}
    for row in study.rows:
        row = _renamed(row, equal)
        key = row.rescaled or row.along or (row.weights and row.name)
        key = key or (row.untrained, str(row.search), same_run(configs[row.name]))
        if (same := first.setdefault(key, row.name)) != row.name:
            equal[row.name] = same
    said += [f"'{name}' is left out: at {scale.name} it would run as '{same}' does" for name, same in equal.items()]
    rows = tuple(_renamed(row, equal) for row in study.rows if row.name not in equal)
    if equal and (study.design or not sum(row.trains for row in rows) > 1):
        raise UserError(
            f'{study.name or study.title} has nothing to compare at this scale: {said[0]}; take another scale'
        )
    for kind in scale.floor:
        if not any(row.untrained == kind for row in rows) and any(measures(kind, task) for task in tasks):
            rows += (Row(FLOOR[kind], rows[0].config, rows[0].options, factor='no training', untrained=kind),)
            configs[FLOOR[kind]] = configs[rows[0].name]
    require_clean_choices(study, {row.name: configs[row.name] for row in rows}, tasks)
    looks = tuple(replace(look, rows=tuple(equal.get(name, name) for name in look.rows)) for look in study.look)
    return replace(study, rows=rows, look=looks), {row.name: configs[row.name] for row in rows}, said


def require_clean_choices(study: Study, configs: Mapping[str, Config], tasks: Sequence[str]) -> None:
    """Raise if the configs say that a search or a task would choose by test images; runs compare the images themselves."""
    for cfg in configs.values():
        chosen_on = [cfg] if study.search else []
        chosen_on += [data_of(task) or cfg for task in tasks if is_local(task) and _chooses(study, cfg, task)]
        for data in chosen_on:
            if {'train', 'test'} <= data.get('evaluation', {}).keys():
                held_out(data.evaluation)


def _chooses(study: Study, cfg: Config, task: str) -> bool:
    """Whether a task chooses by images that are held out, or by `evaluation.val`."""
    return settings_for(protocol_name(task)).chooses(data_of(task) or cfg, trials=task in study.tune)


def without_empty_factors(study: Study, scale: Scale) -> tuple[Study, list[str]]:
    """Return a crossed study without the factors whose levels are one at this scale, and a sentence for each."""
    empty = []
    for factor in study.cross.factors if study.cross else ():
        rows = [replace(study.rows[0], options={**study.rows[0].options, **level}) for level in factor.levels.values()]
        if len({same_run(resolve(row, scale)) for row in rows}) == 1:
            empty.append(factor.name)
    if not empty or len(empty) == len(study.cross.factors):
        return study, []
    cross = study.cross.without(empty)
    said = [f"the factor '{name}' is left out: at {scale.name} its levels are the same" for name in empty]
    return replace(study, cross=cross, rows=tuple(cross.rows())), said


def _renamed(row: Row, equal: Mapping[str, str]) -> Row:
    """Return the row, which builds on rows that are left out no more."""
    made = {
        way: replace(source, **{key: equal.get(name, name) for key, name in row.others.items()})
        for way in ('rescaled', 'along')
        if (source := getattr(row, way))
    }
    return replace(row, against=equal.get(row.against, row.against), **made)


def compare(study: Study, configs: dict[str, Config]) -> list[dict[str, Any]]:
    """Compare each row with the one that it builds on: keys that are declared, that differ, that are searched, and the rest.

    Networks from elsewhere have factors, as stated, in place of keys; those not known of both rows are `unknown`.
    """
    found, rows = [], {row.name: row for row in study.rows}
    searched = searched_keys(study.search, study.rows, configs)
    for row in (row for row in study.rows if row.against):
        base = rows[row.against]
        if row.weights or base.weights:
            differing, unknown = compare_stated(row, base, configs)
        else:
            differing, unknown = changed(configs[base.name], configs[row.name]), []
        both = searched[row.name] & searched[base.name]
        prefixes = tuple(f'{prefix}.' for prefix in row.declares)
        undeclared = [
            key
            for key in differing
            if key not in both and not f'{key}.'.replace(VIEWS_ON_DEVICE, VIEWS).startswith(prefixes)
        ]
        keys = dict(declared=list(row.declares), found=differing, searched=sorted(both), undeclared=undeclared)
        found.append(dict(row=row.name, on=base.name, **keys, unknown=unknown))
    return found


def require_fair(compared: Sequence[dict[str, Any]]) -> None:
    """Refuse a study with a difference that no row declares."""
    for entry in compared:
        if entry['undeclared']:
            raise UserError(
                f"'{entry['row']}' differs from '{entry['on']}' in {', '.join(entry['undeclared'])}, which the study does "
                "not declare; make the configs equal there, or add it to the row's `declares`"
            )


Results = Mapping[str, Sequence[Mapping[str, Any]]]  # the finished runs of each row


def after(results: Results) -> list[dict[str, Any]]:
    """Return whether the finished runs are comparable: as many images seen, measured alike, by the same code.

    Code of which a run did not record all sources is not verified. Modules outside the package are compared one by one.
    """
    questions = {
        'images seen': 'images_seen',
        'optimizer steps': 'steps',
        'evaluation': 'evaluation',
        'software': 'versions',
        'code': 'git',
    }
    checks = [_equal(name, key, results) for name, key in questions.items()]
    unverified = {
        row: ', '.join(sorted({part for run in runs for part in run.get('unverified', ())}))
        for row, runs in results.items()
    }
    if unverified := {row: parts for row, parts in unverified.items() if parts}:
        checks[-1] = dict(checks[-1], equal=False, unverified=unverified)
    sources = {row: [run.get('sources') or {} for run in runs] for row, runs in results.items()}
    modules = {name for runs in sources.values() for run in runs for name in run}
    return checks + [_equal(f'source of {name}', name, sources) for name in sorted(modules)]


def hidden(results: Results) -> list[dict[str, Any]]:
    """List the factors that papers seldom print, as the runs recorded them, each with whether all rows have the same."""
    recorded = {row: [run.get('hidden', {}) for run in runs] for row, runs in results.items()}
    names = dict.fromkeys(name for runs in recorded.values() for run in runs for name in run)
    checks = [_equal(name, name, recorded) for name in names]
    return [dict(check, equal=check['equal'] and len(check['values']) == len(recorded)) for check in checks]


def _equal(name: str, key: str, results: Results) -> dict[str, Any]:
    values = {row: sorted({str(run[key]) for run in runs if key in run}) for row, runs in results.items()}
    said = {row: ' / '.join(found) for row, found in values.items() if found}
    return dict(check=name, equal=len(set(said.values())) <= 1, values=said)
