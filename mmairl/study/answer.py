"""The top of a study page: problems, answer and next steps. The sentences are in its templates."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from markupsafe import Markup

from mmairl.report.page import ENVIRONMENT, fill
from mmairl.report.table import counted
from mmairl.study.findings import Finding, Findings, all_findings
from mmairl.study.statistics import contrasts
from mmairl.study.statistics.contrasts import INCONCLUSIVE, ONE_SEED, seeds_needed

Record = Mapping[str, Any]
FEW_SEEDS = 3  # If a study has only one seed, the page suggests this number of seeds.
MANY_SEEDS = 10  # A command states more consecutive seeds than this by `seq`.
MOST_LISTED = 3  # A sentence lists at most this many names, and the page at most this many errors.
# Rows may differ in these properties, because the length of training may be a factor of the study.
FAIR_ANYWAY = 'images seen', 'optimizer steps'


def quoted(name: str) -> Markup:
    return Markup('<bdi>“{}”</bdi>').format(name)


def enumerated(parts: Iterable[str]) -> Markup:
    """Return 'a', 'a and b', or 'a, b, c and 2 more'."""
    parts = list(parts)
    more = len(parts) - MOST_LISTED
    *rest, last = [*parts[:MOST_LISTED], f'{more} more'] if more > 0 else parts
    joined = Markup(', ').join(rest)
    return Markup('{} and {}').format(joined, last) if rest else Markup('{}').format(last)


def tallied(found: Iterable[Finding]) -> Markup:
    """Return how often each verdict occurs, the most frequent verdict first, such as '2 inconclusive'."""
    counts = Counter(one.verdict for one in found)
    return Markup(', ').join(f'{number} {verdict}' for verdict, number in counts.most_common())


FILTERS = quoted, enumerated, tallied, counted
ENVIRONMENT.filters.update({function.__name__: function for function in FILTERS})
ENVIRONMENT.loader.searchpath.append(str(Path(__file__).with_name('templates')))


def sentences(template: str, **values: object) -> list[Markup]:
    """Fill in a template and return its paragraphs without their tags."""
    paragraphs = fill(template, words=contrasts, **values).split('<p>')
    return [Markup(' '.join(paragraph.split())) for paragraph in paragraphs[1:]]


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours, such as '2.0 h'."""
    if seconds < 120:
        return f'{seconds:.0f} s'
    return f'{seconds / 60:.0f} min' if seconds < 7200 else f'{seconds / 3600:.1f} h'


def runs_of(study: Record, *states: str) -> list[tuple[str, Record]]:
    """Return each run with the name of its row, or the runs in some states."""
    runs = [(row['name'], run) for row in study['rows'] for run in row['runs']]
    return [(name, run) for name, run in runs if not states or run['state'] in states]


def run_counts(study: Record) -> tuple[int, int]:
    """Return the number of finished runs and the number of planned runs."""
    return len(runs_of(study, 'done')), len(runs_of(study))


def problems(study: Record) -> list[Markup]:
    """Return the problems that a reader must know before the answer, each with its consequence."""
    unequal = [check['check'] for check in study['fairness']['after'] if not check['equal']]
    states = Counter(run['state'] for _, run in runs_of(study))
    return sentences(
        'study_problems.html',
        study=study,
        first=next(all_findings(study), None),
        unequal=[check for check in unequal if check not in FAIR_ANYWAY],
        states={state: states[state] for state in states if state != 'done'},
        run_counts=run_counts(study),
        refresh=command(study, '--collect'),
        failed=runs_of(study, 'failed')[:MOST_LISTED],
        left_out=dict.fromkeys(_left_out(study)),
    )


def _left_out(study: Record) -> Iterator[str]:
    for _, run in runs_of(study):
        for task, counts in run.get('left_out', {}).items():
            what = ', '.join(f'{count} {name}' for name, count in counts.items())
            yield f'The task {task} leaves out {what}'


def answer(study: Record) -> list[Markup]:
    """Return the paragraphs that answer the question of the study. The first paragraph is the headline."""
    first, *others = [*all_findings(study)] or [None]
    values = dict(first=first, others=others, run_counts=run_counts(study))
    return sentences('study_answer.html', study=study, **values)


class Step(NamedTuple):
    """A next step that the study page suggests: what to do, why, at what cost, and the command line."""

    title: Markup
    reason: str
    cost: str
    command: str


def next_steps(study: Record) -> Iterator[Step]:
    """Yield the next steps: those that make the study valid, and the cheapest step that decides a comparison."""
    found = next(all_findings(study), None)
    done, planned = run_counts(study)
    if remaining := planned - done:
        title = Markup(f'Run the remaining {counted(remaining, "run")}')
        cost = cost_of(study, remaining)
        yield Step(title, 'finished runs are reused', cost, command(study))
    # Seeds that are added after the planned analyses would raise the error rate.
    elif found and study['interim_analyses'] == 1:
        yield from _more_seeds(found)


def command(study: Record, *options: str, seeds: Sequence[int] = ()) -> str:
    """Return the command line that runs the study, with further options; '' if the study has no command."""
    if not study['command']:
        return ''
    line = shlex.join([*study['command'], *options])
    seeds = [*(seeds or study['seeds'])]
    first, last = seeds[0], seeds[-1]
    if len(seeds) > MANY_SEEDS and seeds == [*range(first, last + 1)]:
        return f'{line} --seeds $(seq {first} {last})'
    return f'{line} --seeds {" ".join(map(str, seeds))}'


def cost_of(study: Record, runs: int) -> str:
    """Return a number of runs and their total time at the mean time of the finished runs, as text."""
    seconds = [run['seconds'] for _, run in runs_of(study) if run.get('seconds')]
    time = f', {duration(runs * mean(seconds))}' if seconds else ''
    return f'{counted(runs, "run")}{time}'


def _more_seeds(found: Findings) -> Iterator[Step]:
    """Yield a step that adds seeds: as many as the inconclusive comparison needs that needs the fewest."""
    study, present = found.study, found.study['seeds']
    rows = sum(not row['untrained'] and not row['external'] for row in study['rows'])
    needs = [(FEW_SEEDS, one.name) for one in found.with_verdict(ONE_SEED)]
    for one in found.with_verdict(INCONCLUSIVE):
        if needed := seeds_needed(one, len(found.all)):
            needs.append((needed, one.name))
    if needs and rows:
        needed, name = min(needs)
        more = max(needed - len(present), 1)
        seeds = [*present, *range(max(present) + 1, max(present) + 1 + more)]
        title = Markup('Run {} to decide {}').format(counted(more, 'more seed'), quoted(name))
        reason = 'the fewest seeds with which a comparison probably has a verdict'
        # In a tuned study, each seed has a search before its run. The budget is in runs of the cheapest row.
        runs = round(rows * more * (1 + study['tuned'].get('budget', 0)))
        yield Step(title, reason, cost_of(study, runs), command(study, seeds=seeds))
