"""Precision of forked rows: what sharing epochs with a trunk gains over independent runs, and the noise that remains."""

import math
from collections.abc import Sequence
from statistics import variance
from typing import Any

import yaml

from mmairl.config import flat
from mmairl.io import parse_yaml
from mmairl.study.statistics.compare_rows import Record, scores_by_seed, shared_epochs

NEGLIGIBLE = 1e-6  # relative changes of options below it cause numerical divergence only


def fork_summary(study: Record, metric: str) -> list[dict[str, Any]]:
    """Return the precision of each comparison of forked rows by one score.

    `epoch` is the last shared epoch, `between` the standard deviation of the base row's runs, one per trunk, and `within`
    that of the paired differences. As many independent `runs` of each row would have the same standard error. If `null`,
    options differ by less than a millionth, so the differences of scores are numerical divergence.
    """
    rows = {row['name']: row for row in study['rows']}
    entries = []
    for pair in study['comparisons'].get(metric, ()):
        row, base = rows[pair['row']], rows[pair['on']]
        epoch = shared_epochs(row, base)
        within = pair.get('deviation')
        if not epoch or not within or pair.get('share') is not None:
            continue
        variances = [variance(scores_by_seed(side, metric).values()) for side in (row, base)]
        entries.append(
            dict(
                row=row['name'],
                on=base['name'],
                epoch=epoch,
                between=math.sqrt(variances[1]),
                within=within,
                runs=math.ceil(pair['seeds'] * sum(variances) / within**2),
                null=is_null(row, base),
            )
        )
    return entries


def is_null(row: Record, base: Record) -> bool:
    """Return True if all that a row changes are numbers, and these by less than a millionth."""
    one, two = (row_settings(side['runs']) for side in (row, base))
    pairs = [(one.get(key), two.get(key)) for key in row['changed']]
    return bool(pairs) and all(
        isinstance(value, float)
        and isinstance(other, float)
        and math.isclose(value, other, rel_tol=NEGLIGIBLE)
        for value, other in pairs
    )


def row_settings(runs: Sequence[Record]) -> dict[str, Any]:
    """Return the config of a row by dotted keys, from the first run that has its text, if it is valid."""
    text = next((run['config_text'] for run in runs if run.get('config_text')), '')
    try:
        return flat(parse_yaml(text) or {})
    except (ValueError, yaml.YAMLError, RecursionError, OverflowError):
        return {}
