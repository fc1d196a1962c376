"""The top of a study page: problems, answer and next steps.

A row of a study is one configuration, usually trained with several seeds.

The sentences of the problems and of the answer are in the templates `study_problems.html` and `study_sentences.html`.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from markupsafe import Markup

from mmairl.study.pages.findings import Findings, all_findings
from mmairl.study.pages.study_tables import problems_by_seed
from mmairl.study.pages.words import (
    MOST_LISTED,
    coded,
    counted,
    duration,
    enumerated,
    quoted,
    sentences,
)
from mmairl.study.statistics import verdict_words
from mmairl.study.statistics.power import seeds_for
from mmairl.study.statistics.summary import progress
from mmairl.study.statistics.verdict_words import INCONCLUSIVE, ONE_SEED

Record = Mapping[str, Any]
# If a study has only one seed, the study page suggests this number of seeds.
FEW_SEEDS = 3
# Rows may differ in these properties, because the length of training may be a factor of the study.
FAIR_ANYWAY = 'images seen', 'optimizer steps'


def problems(study: Record) -> list[Markup]:
    """Return the problems that a reader must know before the answer, each with its consequence."""
    found = all_findings(study)
    finished, asked = progress(study)
    causes: dict[tuple[str, str], list[Markup]] = {}
    states: Counter[str] = Counter()
    for row in study['rows']:
        for seed, state, sentence in problems_by_seed(study, row):
            states[state] += 1
            place = Markup('{}, seed {}').format(quoted(row['name']), seed)
            causes.setdefault((state, sentence), []).append(place)
    return sentences(
        'study_problems.html',
        first=found[0] if found else None,
        words=verdict_words,
        fairness=study['fairness'],
        unequal=list(_unequal_checks(study)),
        unfinished=[f'{count} {state}' for state, count in states.items() if state != 'done'],
        finished=finished,
        asked=asked,
        refresh=command(study, '--collect'),
        causes=[
            (sentence, places)
            for (state, sentence), places in causes.items()
            if state not in ('missing', 'waiting')
        ],
        most=MOST_LISTED,
    )


def _unequal_checks(study: Record) -> Iterator[str]:
    for check in study['fairness'].get('after', ()):
        unequal = not check['equal'] and not check.get('unverified')
        if unequal and check['check'] not in FAIR_ANYWAY:
            yield check['check']


def answer(study: Record) -> list[Markup]:
    """Return the paragraphs that answer the question of the study. The first paragraph is the headline."""
    found = all_findings(study)
    finished, asked = progress(study)
    return sentences(
        'study_sentences.html',
        study=study,
        first=found[0] if found else None,
        others=found[1:],
        finished=finished,
        asked=asked,
        groups=list(_along_axis(study)),
        label=_primary(study).label if study['metrics'] else '',
        words=verdict_words,
    )


def _primary(study: Record) -> Findings:
    return Findings(study, study.get('primary') or study['metrics'][0]['key'])


def _along_axis(study: Record) -> Iterator[Markup]:
    """For each group of rows in a line chart, yield a clause with the primary score at the smallest and the largest x value."""
    if study['figure'].get('kind') != 'lines' or not study['metrics']:
        return
    found = _primary(study)
    groups: dict[str, list[Record]] = {}
    for row in study['rows']:
        if row['x'] is not None and found.mean(row['name']) is not None:
            groups.setdefault(row['group'] or '', []).append(row)
    for group, rows in groups.items():
        rows.sort(key=lambda row: row['x'])
        ends = rows[0], rows[-1]
        axis = study['figure'].get('x') or 'x'
        places = [f'{found.mean(row["name"]):.1f} at {axis} = {row["x"]:g}' for row in ends]
        name = quoted(group) if group else Markup('the score')
        yield name + f' changes from {" to ".join(places)}'


@dataclass(frozen=True)
class Step:
    """A next step that the study page suggests.

    Args:
        title: What to do.
        reason: Why the step is useful.
        cost: Number of runs and their time; '' if unknown.
        command: The command line; '' if there is none.
    """

    title: Markup
    reason: str
    cost: str = ''
    command: str = ''


NOTHING_OPEN = Step(
    Markup('Nothing left to do at this scale'),
    'a larger scale shows whether the answer also holds there',
)


def next_steps(study: Record) -> list[Step]:
    """Return the next steps, most important first.

    Steps that make the study valid come first. They are followed by the cheapest step that decides a comparison.
    """
    found = all_findings(study)[:1]
    steps: list[Step] = []
    for first in found:
        steps += _fix_confounded(first)
    steps += _finish_runs(study)
    for first in found:
        steps += _look_at_collapse(first)
        if not study.get('search'):
            steps += _more_seeds(first)
    return steps[:MOST_LISTED] or [NOTHING_OPEN] * len(found)


def command(study: Record, *options: str, seeds: Sequence[int] = ()) -> str:
    """Return the command line that runs the study, with further options; '' if the study has no name."""
    usual = ('mmairl', 'study', f'{study["name"]}.yaml', '--scale', study['scale']['name'])
    if not study['name']:
        return ''
    line = shlex.join([*(study.get('command') or usual), *options])
    if not seeds:
        return line
    if len(seeds) > 5 and list(seeds) == list(range(len(seeds))):
        return f'{line} --seeds $(seq 0 {len(seeds) - 1})'
    return f'{line} --seeds {" ".join(map(str, seeds))}'


def trained_rows(study: Record) -> list[Record]:
    return [row for row in study['rows'] if not row.get('untrained') and not row.get('given')]


def cost_of(study: Record, runs: int) -> str:
    """Return a number of runs and their total time, as text.

    The time is estimated from the mean time of the finished runs. Without finished runs, the text has no time.
    """
    finished = [run for row in trained_rows(study) for run in row['runs'] if run.get('seconds')]
    if not finished:
        return counted(runs, 'run')
    seconds = runs * mean(run['seconds'] for run in finished)
    return f'{counted(runs, "run")}, {duration(seconds)}'


def _fix_confounded(found: Findings) -> Iterator[Step]:
    study = found.study
    if not found.confounded:
        return
    affected = set()
    for finding in found.confounded:
        affected |= {finding.name, *found.built_on(finding.name)}
    keys = enumerated(map(coded, found.confounded[0].undeclared))
    yield Step(
        Markup('Remove the undeclared change of {}, or declare it').format(keys),
        f'then rerun {counted(len(affected), "row")}',
        cost_of(study, len(affected) * len(study['seeds'])),
        command(study),
    )


def _finish_runs(study: Record) -> Iterator[Step]:
    states = Counter()
    for row in study['rows']:
        by_seed = {seed: state for seed, state, _ in problems_by_seed(study, row)}
        states.update(state for state in by_seed.values() if state != 'done')
    running = states.pop('running', 0)
    remaining = states.total()
    if not remaining:
        return
    title = f'Run the remaining {counted(remaining, "run")}'
    if states['failed'] == remaining:
        title = f'Repeat {counted(remaining, "failed run")}'
    also = f'; currently running: {running}' if running else ''
    cost = cost_of(study, remaining)
    yield Step(Markup(title), f'finished runs are reused{also}', cost, command(study))


def _look_at_collapse(found: Findings) -> Iterator[Step]:
    for name, seeds in list(found.collapsed.items())[:1]:
        run = next(one for one in found.rows[name]['runs'] if one['seed'] == seeds[0])
        yield Step(
            Markup('Find out why {}, seed {}, collapsed').format(quoted(name), seeds[0]),
            'some runs of this row collapsed, so its mean score is not compared with that of other rows',
            'no runs',
            shlex.join(['mmairl', 'report', 'health', run['folder']]),
        )


def _more_seeds(found: Findings) -> Iterator[Step]:
    """Yield a step that adds seeds, if more seeds can decide a comparison.

    If the rows already have several seeds, the step adds as many as one inconclusive comparison needs: the one that needs the
    fewest.
    """
    study = found.study
    rows = len(trained_rows(study))
    present = len(study['seeds'])
    first = max(study['seeds'], default=-1) + 1
    if len(found.with_verdict(ONE_SEED)) == len(found.all):
        yield Step(
            Markup(f'Run {counted(FEW_SEEDS - 1, "more seed")}'),
            'one seed cannot decide a comparison; three seeds detect large effects',
            cost_of(study, rows * (FEW_SEEDS - 1)),
            command(study, seeds=[*study['seeds'], *range(first, first + FEW_SEEDS - 1)]),
        )
        return
    options = []
    for finding in found.with_verdict(INCONCLUSIVE):
        size = max(finding.magnitude, finding.margin)
        deviation = finding.stored.get('deviation')
        if deviation and (needed := seeds_for(size, deviation, len(found.all))):
            options.append((max(needed - present, 1), size, finding.name))
    if options and study.get('sequential'):
        yield Step(
            Markup('Continue the sequential analysis'),
            'rows of undecided comparisons get more seeds until each comparison is decided',
            command=command(study, '--until-decided'),
        )
    elif options:
        more, size, name = min(options, key=lambda option: option[0])
        decided = f'enough to detect a difference of {size:.1f} points with 80 % power'
        yield Step(
            Markup('Run {} to decide {}').format(counted(more, 'more seed'), quoted(name)),
            f'{decided}; finished runs are reused',
            cost_of(study, rows * more),
            command(study, seeds=[*study['seeds'], *range(first, first + more)]),
        )
