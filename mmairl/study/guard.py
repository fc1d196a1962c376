"""Fairness, made executable: two rows differ in what the study declares, and in nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.config import Config

from mmairl.errors import UserError
from mmairl.study.factors import changed
from mmairl.study.search import searched_keys
from mmairl.study.spec import Study

# Where a scale, or a config, has the views made on the device, they stand in another place.
VIEWS, VIEWS_ON_DEVICE = 'train_dataloader.dataset.views', 'model.data_preprocessor.views'


def compare(study: Study, configs: dict[str, Config]) -> list[dict[str, Any]]:
    """Compare each row with the one that it builds on: keys that are declared, that differ, that are searched, and the rest."""
    found, searched = [], searched_keys(study.search, study.rows, configs)
    for row in study.rows:
        if row.against is None:
            continue
        differing = changed(configs[row.against], configs[row.name])
        declared = tuple(f'{prefix}.' for prefix in row.declares)
        undeclared = [key for key in differing if not f'{key}.'.replace(VIEWS_ON_DEVICE, VIEWS).startswith(declared)]
        both = searched[row.name] & searched[row.against]
        found.append(
            dict(
                row=row.name,
                on=row.against,
                declared=list(row.declares),
                found=differing,
                searched=sorted(both),
                undeclared=[key for key in undeclared if key not in both],
            )
        )
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
    """Whether the finished runs are comparable: as many images seen, measured alike, by the same code."""
    questions = {
        'images seen': 'images_seen',
        'optimizer steps': 'steps',
        'evaluation': 'evaluation',
        'software': 'versions',
        'code': 'git',
    }
    return [_equal(name, key, results) for name, key in questions.items()]


def hidden(results: Results) -> list[dict[str, Any]]:
    """List the factors that papers seldom print, as the runs recorded them, each with whether all rows have the same."""
    recorded = {row: [run.get('hidden', {}) for run in runs] for row, runs in results.items()}
    names = dict.fromkeys(name for runs in recorded.values() for run in runs for name in run)
    return [_equal(name, name, recorded) for name in names]


def _equal(name: str, key: str, results: Results) -> dict[str, Any]:
    values = {row: sorted({str(run[key]) for run in runs if key in run}) for row, runs in results.items()}
    said = {row: ' / '.join(found) for row, found in values.items() if found}
    return dict(check=name, equal=len(set(said.values())) <= 1, values=said)
