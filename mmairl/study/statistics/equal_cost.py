"""Costs of the rows of a study, and scores of two rows at equal cost where one was measured along its run."""

from collections.abc import Mapping
from statistics import mean
from typing import Any

import numpy as np

from mmairl.study.statistics.compare_rows import interval, limits_by_row, scores_by_seed, unpaired

EQUAL = 0.01  # costs that differ by less, relative to the larger, are the same


def costs(study: Mapping) -> dict[str, dict[str, float | None]]:
    """Return the mean cost of each row's finished runs: images seen, FLOPs and device-seconds; None is not known."""
    rows, found = {row['name']: row for row in study['rows']}, {}
    for row in study['rows']:
        images, flops = _mean(row, 'images_seen'), row.get('flops_per_image')
        seconds, source = _mean(row, 'device_seconds'), rows.get(row.get('of'))
        if source and images and seconds is not None:  # a part of another run was its training
            whole, of_source = _mean(source, 'images_seen'), _mean(source, 'device_seconds')
            seconds = seconds + of_source * images / whole if whole and of_source is not None else None
        found[row['name']] = dict(images=images, flops=images and flops and flops * images, device_seconds=seconds)
    return found


def _mean(row: Mapping, key: str) -> float | None:
    told = [run[key] for run in row['runs'] if run['state'] == 'done' and run.get(key) is not None]
    known = [value for value in told if value or row.get('of')]  # 0 of a winner that was trained as published
    return mean(known) if known else None


def at_equal_cost(study: Mapping, metric: str) -> list[dict[str, Any]]:
    """Each row less the one that it builds on, at the FLOPs of the cheaper: `ratio` is what the row's whole run costs more.

    Between two checkpoints of one run a score is taken to change in a straight line. Without checkpoints on both
    sides of that cost there is no `estimate`. Rows of equal cost, or of one run, are left out, and runs that collapsed.
    """
    spent, limits, entries = costs(study), limits_by_row(study, metric), []
    rows = {row['name']: row for row in study['rows']}
    for row in study['rows']:
        base = rows.get(row['on'])
        cost, other = (spent[side['name']]['flops'] if side else None for side in (row, base))
        if not cost or not other or row.get('of') or abs(cost - other) <= EQUAL * max(cost, other):
            continue
        at = min(cost, other)
        one, two = (_scores_at(study, side, metric, at, spent, limits.get(side['name'])) for side in (row, base))
        entry = dict(row=row['name'], on=base['name'], ratio=cost / other, flops=at)
        if one and two:
            differ = unpaired(np.array(one), np.array(two))
            entry.update(scores=[mean(one), mean(two)], **interval(*map(float, differ)))
        entries.append(entry)
    return entries


def _scores_at(
    study: Mapping, row: Mapping, metric: str, cost: float, spent: Mapping, limit: float | None
) -> list[float]:
    """The score of each seed that learned at this cost, on the line between its checkpoints on both sides of it."""
    taken = [other for other in study['rows'] if other.get('along') and other.get('of') == row['name']]
    by_cost = {spent[point['name']]['flops']: scores_by_seed(point, metric) for point in [row, *taken]}
    at = sorted(filter(None, by_cost))
    if not at[0] <= cost <= at[-1]:
        return []
    learned = {seed for seed, score in scores_by_seed(row, metric).items() if limit is None or score >= limit}
    seeds = sorted(learned.intersection(*(by_cost[where] for where in at)))
    return [float(np.interp(cost, at, [by_cost[where][seed] for where in at])) for seed in seeds]
