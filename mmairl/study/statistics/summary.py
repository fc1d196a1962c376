"""Numbers that pages show in addition to those in a study's record, computed from the record alone."""

from collections.abc import Mapping
from typing import Any

from mmairl.study.statistics.equal_cost import EQUAL
from mmairl.study.statistics.verdict_words import INCONCLUSIVE, current_verdict, differs_in_mean


def progress(study: Mapping) -> tuple[int, int]:
    """Return how many runs are finished, and how many the study asks for."""
    # In a sequential analysis, rows that are decided get no more seeds.
    seeds = 0 if study.get('sequential') else len(study['seeds'])
    finished = 0
    asked = 0
    for row in study['rows']:
        has_own_seeds = row.get('untrained') or row.get('given')
        asked += max(len(row['runs']), 0 if has_own_seeds else seeds)
        finished += sum(run['state'] == 'done' for run in row['runs'])
    return finished, asked


def cost_summary(study: Mapping) -> dict[str, Any]:
    """Return the cost of each row, the comparisons at equal cost by score, and the pairs without one.

    Empty if no row has a known cost.
    """
    cost = study.get('cost', {})
    rows = cost.get('rows', {})
    if not any(row['images'] for row in rows.values()):
        return {}
    flops = [row['flops'] for row in rows.values()]
    equal = {}
    without = {}
    for key, family in cost.get('equal', {}).items():
        without |= {(pair['row'], pair['on']): pair for pair in family if 'estimate' not in pair}
        if estimated := [pair for pair in family if 'estimate' in pair]:
            equal[key] = estimated
    return dict(
        rows=rows,
        first=next(filter(None, flops), None),
        same=all(flops) and max(flops) <= (1 + EQUAL) * min(flops),
        equal=equal,
        without=list(without.values()),
    )


def fresh_run_summary(study: Mapping[str, Any]) -> dict[str, Any]:
    """Return which searched rows are ahead by the primary score of their winners' fresh runs, and which are undecided.

    Scores of trials cannot tell: the best of more trials is higher by luck alone.
    """
    primary = study.get('primary') or next((metric['key'] for metric in study['metrics']), '')
    searched = study['search']['rows']
    ahead = []
    unknown = []
    for pair in study['comparisons'].get(primary, ()):
        if pair['row'] not in searched or pair['on'] not in searched:
            continue
        if differs_in_mean(pair):
            better, worse = (
                (pair['row'], pair['on']) if pair['estimate'] > 0 else (pair['on'], pair['row'])
            )
            ahead.append(dict(row=better, on=worse, by=abs(pair['estimate'])))
        elif current_verdict(pair) == INCONCLUSIVE:
            unknown.append(dict(row=pair['row'], on=pair['on']))
    return dict(primary=primary, ahead=ahead, unknown=unknown)
