"""Seeds added until every comparison is decided, with the error rate kept however often one has looked.

The numbers of seeds at which one looks are fixed before: each is half as many again as the last, up to the most that the
budget allows. After n of N seeds, (n / N)^2 of the 5 % is spent: a look has what that adds. At a look each comparison is tested
as ever, at that level and corrected by Holm; what is decided stays decided, and rows with nothing open get no more seeds.

The chance of a false verdict is at most the sum over looks, whatever these have in common. t-tests of 2 to 20 seeds are exact
one by one, while the joint boundaries of group-sequential designs are of normal scores, and confidence sequences that hold for
ever are much wider.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from mmairl.errors import UserError
from mmairl.io import Declared, read_json, write_json
from mmairl.study.schema import EarlierAnalyses
from mmairl.study.spec import Row, Study
from mmairl.study.statistics.compare_rows import DECISIONS, LEVEL, UNDECIDED, Comparison, compare

USUAL = 12  # seeds a row, where no budget is given


class Plan(Declared):
    """The numbers of seeds, fixed before the first look and kept beside the study: another plan would be another look."""

    first: Annotated[int, Meta(ge=2)]  # seeds of the first look
    most: Annotated[int, Meta(ge=2)]  # seeds a row, of the last

    @property
    def looks(self) -> list[tuple[int, float]]:
        """Numbers of seeds, each with the level that its tests have."""
        counts = [self.first]
        while counts[-1] < self.most:
            counts.append(min(self.most, counts[-1] + math.ceil(counts[-1] / 2)))
        spent = [LEVEL * (count / self.most) ** 2 for count in counts]
        return [(count, now - before) for count, now, before in zip(counts, spent, [0.0, *spent])]

    @property
    def words(self) -> str:
        looks = ', '.join(f'{count} (at {level:.2%})' for count, level in self.looks)
        return f'seeds are added until all is decided; looks at {looks} seeds a row, which together keep the 5 %'


def begin(out: Path, study: Study, seeds: Sequence[int], budget: int | None, runs_a_seed: int | None = None) -> Plan:
    """Return the plan of a budget of runs; a plan that was begun is never changed.

    Args:
        runs_a_seed: The runs of all rows that one more seed, or search, takes. Default: one of each row.
    """
    if study.design:
        raise UserError(
            '--until-decided is for rows one on another; of a crossed study --power says how many runs its effects want'
        )
    path, rows = out / 'sequential.json', sum(not row.untrained for row in study.rows)
    each = runs_a_seed or rows
    plan = Plan(len(seeds), budget // each if budget else max(USUAL, len(seeds)))
    if not 2 <= plan.first <= plan.most:
        raise UserError(
            f'{rows} rows from {plan.first} seeds want --most {each * max(2, plan.first)} or more, and 2 seeds to begin with',
            code='budget-too-small',
        )
    if path.is_file():
        begun = read(out)
        if (plan.first, plan.most if budget else begun.most) != (begun.first, begun.most):
            raise UserError(
                f'{out} was begun with {begun.first} to {begun.most} seeds a row, and another plan would be one more look; '
                'give the --seeds and --most of then, or --out another folder'
            )
        return begun
    write_json(path, plan)
    return plan


def read(out: Path) -> Plan | None:
    """The plan of a study that was begun with --until-decided."""
    path = out / 'sequential.json'
    return read_json(path, Plan) if path.is_file() else None


def taken(path: Path, finished: int) -> list[int]:
    """How many runs were finished at each look so far, of which this is the last; the same runs again are no other look."""
    try:
        before = read_json(path, EarlierAnalyses).finished_runs
    except UserError:  # there is none, or it is no record
        before = []
    return before if finished in before else [*before, finished]


def compare_by_looks(study: Mapping[str, Any], metric: str, margin: float, plan: Plan) -> list[Comparison]:
    """Each comparison as of the look that decided it, or the last one taken; a function of the record alone.

    At a look only those comparisons count of which both rows have all its seeds.
    """
    whole = compare(study, metric, margin)
    kept = [replace(pair, verdict=UNDECIDED) if pair.verdict in DECISIONS else pair for pair in whole]
    for count, level in plan.looks:
        seeds = sorted(study['seeds'])[:count]
        if len(seeds) < count:
            break
        known = [pair.verdict for pair in kept]
        rows = [dict(row, runs=[run for run in row['runs'] if run['seed'] in seeds]) for row in study['rows']]
        now = compare(dict(study, rows=rows), metric, margin, level, known)
        kept = [old if old.verdict in DECISIONS or new.seeds < count else new for old, new in zip(kept, now)]
    return kept


def told(family: Sequence[Comparison], plan: Plan, seeds: int) -> list[str]:
    """Say the decisions of each look that was taken."""
    lines = []
    for count in (count for count, _ in plan.looks if count <= seeds):
        decided = [f'{pair.row} {pair.verdict}' for pair in family if pair.verdict in DECISIONS and pair.seeds == count]
        lines.append(f'look at {count} seeds: {"; ".join(decided) or "nothing was decided"}')
    return lines


def open_rows(study: Study, comparisons: Sequence[Comparison]) -> list[Row]:
    """The rows of undecided comparisons, and those whose weights they take."""
    names = {name for pair in comparisons if pair.verdict not in DECISIONS for name in (pair.row, pair.on)}
    while more := {other for row in study.rows if row.name in names for other in row.others.values()} - names:
        names |= more
    return [row for row in study.rows if row.name in names]
