"""The costs of a study's rows, and comparisons of two rows at equal cost.

A row of a study is one configuration, usually trained with several seeds. Its base row is the row with which it is compared.

A comparison at equal cost requires the scores of checkpoints that were saved during the runs.
"""

import math
from collections.abc import Mapping
from statistics import mean
from typing import Any

import numpy as np

from mmairl.study.statistics.compare_rows import interval, limits_by_row, scores_by_seed, unpaired

# Two costs count as equal if they differ by less than this fraction of the larger cost.
EQUAL = 0.01

Costs = dict[str, dict[str, float | None]]


def costs(study: Mapping) -> Costs:
    """Return the mean cost of each row's finished runs: images seen, FLOPs and device-seconds. Unknown costs are None."""
    rows = {row['name']: row for row in study['rows']}
    found = {}
    for name, row in rows.items():
        images = _mean(row, 'images_seen')
        flops = row.get('flops_per_image')
        found[name] = dict(
            images=images,
            flops=images and flops and flops * images,
            device_seconds=_device_seconds(row, rows.get(row.get('of')), images),
        )
    return found


def _device_seconds(row: Mapping, source: Mapping | None, images: float | None) -> float | None:
    """Return the mean device-seconds of a row's runs.

    A row may take its weights from the runs of another row, `source`, instead of training. The result then includes the time
    that the runs of `source` took for the same number of images.
    """
    seconds = _mean(row, 'device_seconds')
    if not source or not images or seconds is None:
        return seconds
    source_images = _mean(source, 'images_seen')
    source_seconds = _mean(source, 'device_seconds')
    if not source_images or source_seconds is None:
        return None
    return seconds + source_seconds * images / source_images


def _mean(row: Mapping, key: str) -> float | None:
    values = []
    for run in row['runs']:
        value = run.get(key) if run['state'] == 'done' else None
        # A cost of 0 is skipped: it marks a run whose weights were copied, because a search chose the row's own options.
        if value is not None and (value or row.get('of')):
            values.append(value)
    return mean(values) if values else None


def at_equal_cost(study: Mapping, metric: str) -> list[dict[str, Any]]:
    """Compare the scores of each row and its base row at the FLOPs of the cheaper of the two rows.

    In each entry, `ratio` is the cost of one run of the row divided by that of one run of its base row. The score of the
    costlier row is interpolated linearly between two checkpoints. The entry has no `estimate` unless the costlier row has
    measured checkpoints below and above the lower cost. Collapsed runs are excluded. A row has no entry if one of the two
    costs is unknown, if both costs are equal, or if the row takes its weights from another row instead of training.
    """
    spent = costs(study)
    rows = {row['name']: row for row in study['rows']}
    entries = []
    for row in study['rows']:
        base = rows.get(row['on'])
        if base is None or row.get('of'):
            continue
        row_cost, base_cost = (spent[side['name']]['flops'] for side in (row, base))
        if not row_cost or not base_cost:
            continue
        if abs(row_cost - base_cost) <= EQUAL * max(row_cost, base_cost):
            continue
        cost = min(row_cost, base_cost)
        entry = dict(row=row['name'], on=base['name'], ratio=row_cost / base_cost, flops=cost)
        scores = [scores_at(study, metric, spent, side, cost) for side in (row, base)]
        if all(scores):
            difference = unpaired(*map(np.array, scores))
            entry.update(scores=list(map(mean, scores)), **interval(*map(float, difference)))
        entries.append(entry)
    return entries


def scores_at(
    study: Mapping,
    metric: str,
    spent: Costs,
    row: Mapping,
    cost: float,
) -> list[float]:
    """Return the score of each run of a row at a given cost, interpolated between the checkpoints of the run.

    Collapsed runs are excluded. The list is empty if the cost is outside the range that the checkpoints cover.

    Args:
        study: The record of the study.
        metric: Key of the score.
        spent: The costs of all rows, as `costs` returns them.
        row: The row.
        cost: The cost in FLOPs.
    """
    points = [row]
    for other in study['rows']:
        if other.get('along') and other.get('of') == row['name']:
            points.append(other)
    by_cost = {spent[point['name']]['flops']: scores_by_seed(point, metric) for point in points}
    known = sorted(filter(None, by_cost))
    if not known[0] <= cost <= known[-1]:
        return []
    limit = limits_by_row(study, metric).get(row['name'], -math.inf)
    final = scores_by_seed(row, metric)
    scores = []
    for seed in sorted(set(final).intersection(*(by_cost[point] for point in known))):
        if final[seed] >= limit:
            curve = [by_cost[point][seed] for point in known]
            scores.append(float(np.interp(cost, known, curve)))
    return scores
