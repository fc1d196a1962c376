"""The top of a study page: problems, answer and next steps."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from markupsafe import Markup

from mmairl.report.table import counted, signed
from mmairl.study.findings import Finding, Findings, all_findings
from mmairl.study.statistics.contrasts import EQUIVALENT, INCONCLUSIVE, MORE_COLLAPSES, ONE_SEED
from mmairl.study.statistics.power import seeds_needed

Record = Mapping[str, Any]
FEW_SEEDS = 3  # If a study has only one seed, the page suggests this number of seeds.
MOST_LISTED = 3  # A sentence lists at most this many names, and the page at most this many steps.
# Rows may differ in these properties, because the length of training may be a factor of the study.
FAIR_ANYWAY = 'images seen', 'optimizer steps'
STATES = {
    'missing': 'not run yet',
    'waiting': 'waiting for the weights of another run',
    'running': 'running',
    'stopped': 'stopped; run the study again to resume',
    'failed': 'failed',
}


def quoted(name: str) -> Markup:
    return Markup('<bdi>“{}”</bdi>').format(name)


def coded(key: str) -> Markup:
    return Markup('<code>{}</code>').format(key)


def enumerated(parts: Iterable[str], most: int = MOST_LISTED) -> Markup:
    """Return 'a', 'a and b', or 'a, b, c and 2 more'."""
    parts = list(parts)
    more = len(parts) - most
    *rest, last = [*parts[:most], f'{more} more'] if more > 0 else parts
    joined = Markup(', ').join(rest)
    return Markup('{} and {}').format(joined, last) if rest else Markup('{}').format(last)


def names_of(found: Iterable[Finding]) -> Markup:
    return enumerated(quoted(one.name) for one in found)


def tallied(found: Iterable[Finding]) -> Markup:
    """Return how often each verdict occurs, the most frequent verdict first, such as '2 inconclusive'."""
    counts = Counter(one.verdict for one in found)
    return enumerated((f'{number} {verdict}' for verdict, number in counts.most_common()), 9)


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours, such as '2.0 h'."""
    if seconds < 120:
        return f'{seconds:.0f} s'
    return f'{seconds / 60:.0f} min' if seconds < 7200 else f'{seconds / 3600:.1f} h'


def missing_seeds(study: Record, row: Record) -> list[int]:
    """Return the seeds for which a trained row has no run."""
    if row['untrained'] or row['external']:
        return []
    present = {run['seed'] for run in row['runs']}
    return [seed for seed in study['seeds'] if seed not in present]


def unfinished_runs(study: Record) -> Iterator[tuple[str, int, str, str]]:
    """Yield the row, the seed, the state and the last message of each run that is not finished."""
    for row in study['rows']:
        for seed in missing_seeds(study, row):
            yield row['name'], seed, 'missing', ''
        for run in row['runs']:
            if run['state'] != 'done':
                yield (
                    row['name'],
                    run['seed'],
                    run['state'],
                    ' '.join((run.get('error') or '').split()),
                )


def progress(study: Record) -> tuple[int, int]:
    """Return the number of finished runs, and the number of runs that the study requires."""
    finished = sum(run['state'] == 'done' for row in study['rows'] for run in row['runs'])
    return finished, finished + len(list(unfinished_runs(study)))


def problems(study: Record) -> list[Markup]:
    """Return the problems that a reader must know before the answer, each with its consequence."""
    found = next(all_findings(study), None)
    return [
        *(_confounded(found) if found else ()),
        *(_collapsed(found) if found else ()),
        *(_one_seed(found) if found else ()),
        *_unequal(study),
        *_unfinished(study),
        *_left_out(study),
    ]


def _confounded(found: Findings) -> Iterator[Markup]:
    confounded = [one for one in found.all if one.undeclared]
    if 'design' in found.study and confounded:
        keys = enumerated(map(coded, confounded[0].undeclared))
        yield Markup(
            '<b>All effects are confounded.</b> The rows also differ in {}, which is not declared.'
        ).format(keys)
        return
    for one in confounded:
        later = len(found.built_on(one.name))
        builds = f' {counted(later, "row builds", "rows build")} on it.' if later else ''
        text = '<b>{} is confounded.</b> It also changes {}, which is not declared, so its effect has no verdict.{}'
        yield Markup(text).format(quoted(one.name), enumerated(map(coded, one.undeclared)), builds)


def _collapsed(found: Findings) -> Iterator[Markup]:
    for name, seeds in found.collapsed.items():
        affected = [one for one in found.all if name in (one.name, one.effect.base)]
        text = (
            '<b>{} of {} runs of {} collapsed:</b> their features are constant or nearly constant.'
        )
        sentence = Markup(text).format(len(seeds), len(found.rows[name]['runs']), quoted(name))
        if affected:
            sentence += Markup(' The effect of {} on the mean score is not tested.').format(
                names_of(affected)
            )
        yield sentence


def _one_seed(found: Findings) -> Iterator[Markup]:
    single = found.with_verdict(ONE_SEED)
    if single:
        what = (
            Markup('All comparisons rest')
            if len(single) == len(found.all)
            else names_of(single) + ' rests'
        )
        yield Markup(
            '<b>One seed.</b> {} on one seed, so effects cannot be distinguished from noise.'
        ).format(what)


def _unequal(study: Record) -> Iterator[Markup]:
    for check in study['fairness']['before']:
        if check['unknown']:
            text = '<b>Unknown training.</b> The training settings of {} or {} are unknown, so the effect has no single cause.'
            yield Markup(text).format(quoted(check['row']), quoted(check['on']))
    unequal = [
        check['check']
        for check in study['fairness']['after']
        if not check['equal'] and check['check'] not in FAIR_ANYWAY
    ]
    if unequal:
        text = '<b>The runs differ in {}.</b> This may explain a part of the effects. See Fairness below.'
        yield Markup(text).format(enumerated(unequal))
    if study['tuned'] and len(study['seeds']) == 1:
        yield Markup(
            '<b>One search.</b> The verdicts hold only for the chosen settings, not for tuning in general.'
        )


def _unfinished(study: Record) -> Iterator[Markup]:
    finished, asked = progress(study)
    states = Counter(state for _, _, state, _ in unfinished_runs(study))
    if not states:
        return
    counts = ', '.join(f'{number} {state}' for state, number in states.items())
    refresh = command(study, '--collect')
    text = '<b>{} of {} runs are finished</b> ({}). Verdicts may change. Refresh: <code class="command">{}</code>'
    yield Markup(text).format(finished, asked, counts, refresh)
    errors: dict[str, list[Markup]] = {}
    for name, seed, state, error in unfinished_runs(study):
        if state == 'failed':
            errors.setdefault(error, []).append(Markup('{}, seed {}').format(quoted(name), seed))
    for error, places in list(errors.items())[:MOST_LISTED]:
        yield Markup('{} failed: {}').format(enumerated(places), error)


def _left_out(study: Record) -> Iterator[Markup]:
    for row in study['rows']:
        for run in row['runs'][:1]:
            for task, counts in run.get('left_out', {}).items():
                what = ', '.join(f'{count} {name}' for name, count in counts.items())
                yield Markup('The task {} leaves out {} ({}).').format(
                    coded(task), what, quoted(row['name'])
                )


def answer(study: Record) -> list[Markup]:
    """Return the paragraphs that answer the question of the study. The first paragraph is the headline."""
    every = list(all_findings(study))
    if not study['metrics']:
        finished, asked = progress(study)
        return [Markup(f'No score is measured yet; {finished} of {asked} runs are finished.')]
    if not every:
        return [Markup('This study does not compare rows.')]
    first, *others = every
    details = [*_details(first), *(_other_score(other, first) for other in others)]
    return [_headline(first), Markup(' ').join(details)]


def _size(found: Findings, one: Finding) -> Markup:
    interval = Markup(' (95&nbsp;% interval {})').format(one.interval) if one.interval else ''
    text = Markup('<b>{} {}</b>{}.').format(one.size, found.unit, interval)
    if one.published is not None:
        text += Markup(' The paper reports {} ({}).').format(
            one.published_size, found.published_key
        )
    elif found.published_key:
        text += ' The paper reports no number for this effect.'
    return text


def _headline(found: Findings) -> Markup:
    decided, largest = found.decided, found.largest_open
    collapsing = found.with_verdict(MORE_COLLAPSES)
    if decided:
        one = decided[0]
        start = Markup('The largest significant effect is that of {}: {} is <b>{}</b>, ')
        if len(found.all) == 1:
            start = Markup('With {}, {} is <b>{}</b>, ')
        text = start.format(quoted(one.name), found.label, one.verdict) + _size(found, one)
        if one.cost > 1.05:
            text += Markup(' {} takes {:.2g} times the compute of its base row.').format(
                quoted(one.name), one.cost
            )
        if found.total:
            text += Markup(' All steps together: {}.').format(found.total.size)
        return text
    if collapsing:
        text = '{} changes how many runs collapse ({}).'
        return Markup(text).format(quoted(collapsing[0].name), collapsing[0].collapse_text)
    if all(one.verdict == EQUIVALENT for one in found.all):
        text = '<b>No {} makes a difference:</b> {} within ±{:g} {}.'
        verb = 'it is' if len(found.all) == 1 else f'all {len(found.all)} are'
        return Markup(text).format(found.noun, verb, found.all[0].effect.margin, found.unit)
    if largest:
        text = '<b>No {} has a significant effect.</b> The largest effect, that of {}, is <b>{}</b>{}: {} changes by '
        corrected = (
            ' after correction for several comparisons' if largest.fails_after_correction else ''
        )
        return Markup(text).format(
            found.noun, quoted(largest.name), largest.verdict, corrected, found.label
        ) + _size(found, largest)
    return Markup('<b>No {} has a verdict:</b> {}.').format(found.noun, tallied(found.all))


def _details(found: Findings) -> Iterator[Markup]:
    decided, equivalent = found.decided, found.with_verdict(EQUIVALENT)
    if decided[1:]:
        parts = []
        for one in decided[1:]:
            parts.append(
                Markup('{} is {} by {:.{}f} ({})').format(
                    quoted(one.name), one.verdict, one.magnitude, one.digits, one.interval
                )
            )
        yield enumerated(parts) + '.'
    if equivalent and len(equivalent) < len(found.all):
        margin = equivalent[0].effect.margin
        yield Markup('Equivalent within ±{:g}: {}.').format(margin, names_of(equivalent))
    if found.undecided and (decided or equivalent):
        count = counted(len(found.all), found.noun)
        yield Markup('Of {}, {}.').format(count, tallied(found.undecided))
    largest = found.largest_open
    if decided and largest and largest.magnitude > decided[0].magnitude:
        yield Markup('{} has a larger effect ({}), but it is <b>{}</b>.').format(
            quoted(largest.name), largest.size, largest.verdict
        )
    if found.study['tuned']:
        yield Markup(
            'Every row was tuned with the same budget, and the comparisons use new runs of the best trials.'
        )


def _other_score(found: Findings, first: Findings) -> Markup:
    known = {one.name: one.verdict for one in first.all}
    differing = [one for one in found.all if one.verdict != known.get(one.name)]
    if not differing:
        return Markup('The verdicts on {} are the same.').format(found.label)
    parts = [Markup('{}: {}').format(quoted(one.name), one.verdict) for one in differing]
    return Markup('The verdicts on {} differ ({}).').format(found.label, enumerated(parts, 2))


@dataclass(frozen=True)
class Step:
    """A next step that the study page suggests: what to do, why, at what cost, and the command line."""

    title: Markup
    reason: str
    cost: str = ''
    command: str = ''


def next_steps(study: Record) -> list[Step]:
    """Return the next steps, most important first.

    Steps that make the study valid come first. They are followed by the cheapest step that decides a comparison.
    """
    found = next(all_findings(study), None)
    steps = [*(_declare(found) if found else ()), *_finish(study)]
    if found:
        steps += [*_look_at_collapse(found), *_more_seeds(found)]
        done = Step(
            Markup('Nothing left to do at this scale'),
            'a larger scale shows whether the answer also holds there',
        )
        steps = steps or [done]
    return steps[:MOST_LISTED]


def command(study: Record, *options: str, seeds: Sequence[int] = ()) -> str:
    """Return the command line that runs the study, with further options; '' if the study has no command."""
    if not study['command']:
        return ''
    chosen = ['--seeds', *map(str, seeds)] if seeds else []
    return shlex.join([*study['command'], *options, *chosen])


def cost_of(study: Record, runs: int) -> str:
    """Return a number of runs and their total time at the mean time of the finished runs, as text."""
    seconds = [run['seconds'] for row in study['rows'] for run in row['runs'] if run.get('seconds')]
    time = f', {duration(runs * mean(seconds))}' if seconds else ''
    return f'{counted(runs, "run")}{time}'


def _declare(found: Findings) -> Iterator[Step]:
    confounded = [one for one in found.all if one.undeclared]
    if confounded:
        rows = {one.name for one in confounded}
        for one in confounded:
            rows |= found.built_on(one.name)
        keys = enumerated(map(coded, confounded[0].undeclared))
        yield Step(
            Markup('Remove the undeclared change of {}, or declare it').format(keys),
            f'then rerun {counted(len(rows), "row")}',
            cost_of(found.study, len(rows) * len(found.study['seeds'])),
            command(found.study),
        )


def _finish(study: Record) -> Iterator[Step]:
    states = Counter(state for _, _, state, _ in unfinished_runs(study))
    running = states.pop('running', 0)
    remaining = states.total()
    if remaining:
        only_failed = states['failed'] == remaining
        title = (
            f'Repeat {counted(remaining, "failed run")}'
            if only_failed
            else f'Run the remaining {counted(remaining, "run")}'
        )
        also = f'; currently running: {running}' if running else ''
        yield Step(
            Markup(title),
            f'finished runs are reused{also}',
            cost_of(study, remaining),
            command(study),
        )


def _look_at_collapse(found: Findings) -> Iterator[Step]:
    for name, seeds in list(found.collapsed.items())[:1]:
        run = next(one for one in found.rows[name]['runs'] if one['seed'] == seeds[0])
        yield Step(
            Markup('Find out why {}, seed {}, collapsed').format(quoted(name), seeds[0]),
            'its mean score is not compared with that of other rows',
            'no runs',
            shlex.join(['mmairl', 'report', 'health', run['folder']]),
        )


def _more_seeds(found: Findings) -> Iterator[Step]:
    """Yield a step that adds seeds: as many as the inconclusive comparison needs that needs the fewest."""
    study = found.study
    rows = sum(not row['untrained'] and not row['external'] for row in study['rows'])
    first = max(study['seeds'], default=-1) + 1
    if not rows or study['tuned']:
        return
    if len(found.with_verdict(ONE_SEED)) == len(found.all):
        more = FEW_SEEDS - 1
        yield Step(
            Markup(f'Run {counted(more, "more seed")}'),
            'one seed cannot decide a comparison; three seeds detect large effects',
            cost_of(study, rows * more),
            command(study, seeds=[*study['seeds'], *range(first, first + more)]),
        )
        return
    options = []
    for one in found.with_verdict(INCONCLUSIVE):
        size = max(one.magnitude, one.effect.margin or 0)
        if size and (needed := seeds_needed(one.effect, size, len(found.all))):
            options.append((max(needed - len(study['seeds']), 1), size, one.name))
    if options:
        more, size, name = min(options, key=lambda option: option[0])
        yield Step(
            Markup('Run {} to decide {}').format(counted(more, 'more seed'), quoted(name)),
            f'enough to detect a difference of {signed(size, found.digits).lstrip("+")} {found.unit} with 80 % power; finished '
            'runs are reused',
            cost_of(study, rows * more),
            command(study, seeds=[*study['seeds'], *range(first, first + more)]),
        )
