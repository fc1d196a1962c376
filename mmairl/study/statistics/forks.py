"""The precision of comparisons with forked rows, relative to comparisons of independent runs.

A row of a study is one configuration, usually trained with several seeds. Its base row is the row with which it is compared.
A fork is a row that continues checkpoints of another row, its trunk, with changed options. The runs of a fork and its trunk
share the epochs before the checkpoint, so they differ less than independent runs.
"""

import math
from collections.abc import Sequence
from statistics import variance
from typing import Any

import yaml

from mmairl.config import flat
from mmairl.io import PlainLoader
from mmairl.study.statistics.compare_rows import Record, scores_by_seed, shared_epochs

# If all options change by less than this fraction of their values, scores differ only because of numerical divergence.
NEGLIGIBLE = 1e-6


def fork_summary(study: Record, metric: str) -> list[dict[str, Any]]:
    """Return the precision of each comparison, by one score, between two rows that share epochs because of a fork.

    Comparisons with collapsed runs or with an unknown spread are left out.

    In each entry, `epoch` is the last shared epoch, `between` is the standard deviation of the runs of the base row, and
    `within` is the standard deviation of the paired differences. `runs` is the number of independent runs per row that would
    give the same standard error as the paired runs. If `null` is true, the options of the two rows differ by less than a
    millionth, so their scores differ only because of numerical divergence.
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
    """Return True if a row changes only options that are floats, each by less than a millionth of its value."""
    one, two = (row_settings(side['runs']) for side in (row, base))
    pairs = [(one.get(key), two.get(key)) for key in row['changed']]
    return bool(pairs) and all(
        isinstance(value, float)
        and isinstance(other, float)
        and math.isclose(value, other, rel_tol=NEGLIGIBLE)
        for value, other in pairs
    )


def row_settings(runs: Sequence[Record]) -> dict[str, Any]:
    """Return the config of a row as a flat dictionary with dotted keys.

    The config is read from the first run that recorded its text. The dictionary is empty if there is no such text or if the
    text is invalid.
    """
    text = next((run['config_text'] for run in runs if run.get('config_text')), '')
    try:
        return flat(yaml.load(text, PlainLoader) or {})
    except (ValueError, yaml.YAMLError, RecursionError, OverflowError):
        return {}
