"""The sentences at the top of a study's page: its problems, its answer, and what to run next.

Each sentence is HTML in which names are escaped. Numbers are in points of the primary score.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from markupsafe import Markup

from mmairl.report.table import signed
from mmairl.study.pages.findings import COSTLIER, Finding, Findings, all_findings
from mmairl.study.pages.study_tables import problems_by_seed
from mmairl.study.statistics.power import seeds_for
from mmairl.study.statistics.summary import fresh_run_summary, progress
from mmairl.study.statistics.verdict_words import (
    EQUIVALENT,
    INCONCLUSIVE,
    ONE_SEED,
    OTHER_COLLAPSES,
)

Record = Mapping[str, Any]
MOST_LISTED = 3  # sentences of one kind
FEW_SEEDS = 3  # seeds to suggest where there is one
FAIR_ANYWAY = ('images seen', 'optimizer steps')  # they differ where a factor is the length
ENDED = ('done', 'failed')


def text(form: str, *values: object) -> Markup:
    return Markup(form).format(*values)


def quoted(name: str) -> Markup:
    return text('<bdi>“{}”</bdi>', name)


def in_words(parts: Sequence[str]) -> Markup:
    """Return 'a', 'a and b', or 'a, b and c'."""
    *rest, last = parts
    return text('{} and {}', Markup(', ').join(rest), last) if rest else text('{}', last)


def enumerated(parts: Sequence[str], most: int = MOST_LISTED) -> Markup:
    more = len(parts) - most
    return in_words([*parts[:most], f'{more} more'] if more > 0 else parts)


def counted(number: int, noun: str, plural: str = '') -> str:
    return f'{number} {noun}' if number == 1 else f'{number} {plural or noun + "s"}'


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours, e.g. '2.0 h'."""
    if seconds < 120:
        return f'{seconds:.0f} s'
    return f'{seconds / 60:.0f} min' if seconds < 7200 else f'{seconds / 3600:.1f} h'


# ---- Problems


def problems(study: Record) -> list[Markup]:
    """Return what a reader must know before the answer, each with its consequence."""
    found = all_findings(study)
    lines: list[Markup] = []
    if found:
        lines += _confounded(found[0])
        lines += _collapsed(found[0])
        lines += _one_seed(found[0])
    return [*lines, *_unstated(study), *_unequal(study), *_runs(study)]


def _confounded(found: Findings) -> Iterator[Markup]:
    if found.crossed and found.undeclared:
        keys = Markup(', ').join(text('<code>{}</code>', key) for key in found.all[0].undeclared)
        yield text('<b>All effects are confounded.</b> Rows also differ, undeclared, in {}.', keys)
        return
    for finding in found.all:
        if not finding.undeclared:
            continue
        keys = [text('<code>{}</code>', key) for key in finding.undeclared]
        later = len(rows_on(found.study, finding.name))
        yield text(
            '<b>{} is confounded.</b> It also changes {}, undeclared, so its effect has no verdict{}.',
            quoted(finding.name),
            enumerated(keys),
            f'; {counted(later, "row")} build on it' if later else '',
        )


def rows_on(study: Record, name: str) -> list[str]:
    """Return the rows that build on a row, directly or through others."""
    built = {name}
    for row in study['rows']:
        if row['on'] in built:
            built.add(row['name'])
    return sorted(built - {name})


def _collapsed(found: Findings) -> Iterator[Markup]:
    for name, seeds in found.collapsed.items():
        affected = [quoted(one.name) for one in found.all if name in (one.name, one.on)]
        consequence = text('; the means are not compared for {}', enumerated(affected))
        yield text(
            '<b>{} of {} runs of {} collapsed</b>{}.',
            len(seeds),
            len(found.rows[name]['runs']),
            quoted(name),
            consequence if affected else '',
        )


def _one_seed(found: Findings) -> Iterator[Markup]:
    single = [finding for finding in found.all if finding.verdict == ONE_SEED]
    if not single:
        return
    names = enumerated([quoted(finding.name) for finding in single])
    which = 'All comparisons rest' if len(single) == len(found.all) else text('{} rests', names)
    yield text('<b>One seed.</b> {} on one seed, so differences cannot be told from noise.', which)


def _unstated(study: Record) -> Iterator[Markup]:
    for check in study['fairness'].get('before', ()):
        if unknown := check.get('unknown'):
            yield text(
                '<b>Not one factor.</b> {} and {} were trained elsewhere; not stated are {}.',
                quoted(check['row']),
                quoted(check['on']),
                enumerated(unknown, 6),
            )


def _unequal(study: Record) -> Iterator[Markup]:
    names = []
    for check in study['fairness'].get('after', ()):
        unequal = not check['equal'] and not check.get('unverified')
        if unequal and check['check'] not in FAIR_ANYWAY:
            names.append(check['check'])
    if names:
        yield text(
            '<b>Not the same in all rows: {}.</b> Differences may be due to it. '
            '<a href="#fairness">Fairness</a>',
            enumerated(names),
        )


def _runs(study: Record) -> Iterator[Markup]:
    """Yield how many runs are unfinished, and one line per cause."""
    causes: dict[tuple[str, str], list[Markup]] = {}
    for row in study['rows']:
        for seed, state, sentence in problems_by_seed(study, row):
            place = text('{}, seed {}', quoted(row['name']), seed)
            causes.setdefault((state, sentence), []).append(place)
    states = Counter()
    for (state, _), places in causes.items():
        states[state] += len(places)
    finished, asked = progress(study)
    unfinished = [f'{number} {state}' for state, number in states.items() if state != 'done']
    if unfinished:
        yield text(
            '<b>{} of {} runs are finished</b> ({}). Verdicts may change. Refresh this page: {}',
            finished,
            asked,
            ', '.join(unfinished),
            text('<code class="command">{}</code>', command(study, '--collect')),
        )
    told = [cause for cause in causes if cause[0] not in ('missing', 'waiting')]
    for cause in told[:MOST_LISTED]:
        yield text('{}: {}.', enumerated(causes[cause]), cause[1])
    if len(told) > MOST_LISTED:
        yield text('{} more problems: <a href="#runs">Runs</a>', len(told) - MOST_LISTED)


# ---- Answer


def answer(study: Record) -> list[Markup]:
    """Return the answer: the first sentence alone, and then the rest."""
    found = all_findings(study)
    finished, asked = progress(study)
    if not study['metrics']:
        return [text('Nothing is measured yet: {} of {} runs are finished.', finished, asked)]
    if not found:
        scores = Findings(study, study.get('primary') or study['metrics'][0]['key'])
        return [*_axis(scores), text('Rows are not compared with each other.')]
    first = found[0]
    lines = [_headline(first), *_others(first), *_larger(first), *_shares(first)]
    return [
        *lines,
        *_other_scores(found),
        *_axis(first),
        *_tuned(study),
        *_sequential(study),
        *_claims(study),
    ]


def effect_size(finding: Finding, unit: str) -> Markup:
    """Return the size of an effect with its interval and the published effect."""
    parts = [text('<b>{} {}</b>', finding.effect().size, unit)]
    if finding.interval:
        parts.append(text('(95&nbsp;% interval {})', finding.interval))
    return Markup(' ').join(parts)


def _decided(found: Findings) -> list[Finding]:
    return sorted(
        (finding for finding in found.all if finding.differs), key=lambda one: -abs(one.estimate)
    )


def _headline(found: Findings) -> Markup:
    findings = found.all
    decided = _decided(found)
    collapsing = [one for one in findings if one.verdict == OTHER_COLLAPSES]
    counts = Counter(one.verdict for one in findings)
    if decided:
        return _largest(found, decided[0])
    if collapsing:
        return text(
            '{} changes how many runs collapse ({}).',
            quoted(collapsing[0].name),
            collapsing[0].collapsed_runs,
        )
    if counts[EQUIVALENT] == len(findings):
        margin = f'±{findings[0].margin:g} points'
        if len(findings) == 1:
            return text(
                '{} makes <b>no difference</b> beyond {}.', quoted(findings[0].name), margin
            )
        return text(
            '<b>No {} makes a difference</b>: all {} are equivalent within {}.',
            found.noun,
            len(findings),
            margin,
        )
    largest = _largest_open(found)
    if largest is None:
        return text('<b>No {} is tested</b>: {}.', found.noun, _by_verdict(findings))
    return text(
        '<b>No {} is decided.</b> The largest difference, {}, is <b>{}</b>: {} of {}{}.',
        found.noun,
        quoted(largest.name),
        largest.verdict,
        effect_size(largest, found.unit),
        found.label,
        paper(found, largest),
    )


def _largest(found: Findings, finding: Finding) -> Markup:
    """Return the headline about the largest decided effect."""
    total = found.total
    of_all = ''
    if total and total.estimate is not None:
        note = f' ({total.note})' if total.note else ''
        of_all = text(' All {}s together: {}{}.', found.noun, total.size, note)
    cost = ''
    if finding.cost and finding.cost > COSTLIER:
        cost = f' It takes {finding.cost:.2g} times the compute.'
    return text(
        '{} {}<b>{}</b>: {} of {}{}.{}{}',
        quoted(finding.name),
        'is ' if len(found.all) == 1 else 'has the largest decided effect and is ',
        finding.verdict,
        effect_size(finding, found.unit),
        found.label,
        paper(found, finding),
        of_all,
        cost,
    )


def paper(found: Findings, finding: Finding) -> Markup:
    """Return what the paper has for a finding; '' if the study has no published numbers."""
    if not found.published_key:
        return Markup()
    if finding.published is None:
        return text('; the paper has no number for it')
    return text('; the paper has {} ({})', signed(finding.published), found.published_label)


def _largest_open(found: Findings) -> Finding | None:
    """Return the largest difference without a decision."""
    known = [
        one
        for one in found.all
        if one.estimate is not None and not one.differs and one.verdict != EQUIVALENT
    ]
    return max(known, key=lambda one: abs(one.estimate), default=None)


def _by_verdict(findings: Sequence[Finding]) -> Markup:
    """Return how many findings have each verdict, e.g. '2 are inconclusive and 1 is confounded'."""
    counts = Counter(one.verdict for one in findings)
    return in_words(
        [
            f'{number} {"is" if number == 1 else "are"} {verdict}'
            for verdict, number in counts.most_common()
        ]
    )


def _others(found: Findings) -> Iterator[Markup]:
    """Yield the further decided effects, and how many others have each verdict."""
    decided = _decided(found)[1:]
    if decided:
        sizes = [
            text(
                '{} is {} by {:.1f} ({})',
                quoted(one.name),
                one.verdict,
                abs(one.estimate),
                one.interval,
            )
            for one in decided
        ]
        yield text('{}.', enumerated(sizes))
    named = _decided(found)
    rest = [one for one in found.all if one not in named]
    if not rest or (not named and len({one.verdict for one in rest}) == 1 and len(rest) > 1):
        return
    if not named and len(rest) == 1:
        return
    equal = [quoted(one.name) for one in rest if one.verdict == EQUIVALENT]
    if equal:
        verb = 'is' if len(equal) == 1 else 'are'
        yield text('{} {} equivalent within ±{:g}.', enumerated(equal), verb, rest[0].margin)
    open_ones = [one for one in rest if one.verdict != EQUIVALENT]
    if open_ones:
        noun = counted(len(found.all), found.noun)
        yield text('Of {}, {}.', noun, _by_verdict(open_ones))


def _larger(found: Findings) -> Iterator[Markup]:
    """Yield a warning if a difference without a verdict is larger than the decided ones."""
    decided = _decided(found)
    largest = _largest_open(found)
    if decided and largest and abs(largest.estimate) > abs(decided[0].estimate):
        yield text(
            '{} differs more ({}), but is <b>{}</b>.',
            quoted(largest.name),
            largest.effect().size,
            largest.verdict,
        )


def _shares(found: Findings) -> Iterator[Markup]:
    if not found.crossed:
        return
    gain = found.crossed['gain']['estimate']
    known = [one for one in found.crossed['shares'] if one['estimate'] is not None]
    if gain is None or not known:
        return
    known.sort(key=lambda one: -abs(one['estimate']))
    parts = [text('{} {}', quoted(one['factor']), signed(one['estimate'])) for one in known]
    yield text(
        'Of the total of {}, the factors bring {}, averaged over all orders of adding them.',
        signed(gain),
        enumerated(parts),
    )


def _other_scores(found: Sequence[Findings]) -> Iterator[Markup]:
    first, *others = found
    verdicts = {one.name: one.verdict for one in first.all}
    for other in others:
        differing = [one for one in other.all if one.verdict != verdicts.get(one.name)]
        if differing:
            names = [text('{}: {}', quoted(one.name), one.verdict) for one in differing]
            yield text('The verdicts on {} differ ({}).', other.label, enumerated(names, 2))
        else:
            yield text('The verdicts on {} are the same.', other.label)


def _axis(found: Findings) -> Iterator[Markup]:
    """Yield how the score changes along the axis of the figure, for each group of rows."""
    study = found.study
    if study['figure'].get('kind') != 'lines':
        return
    groups: dict[str, list[Record]] = {}
    for row in study['rows']:
        if row['x'] is not None and found.mean(row['name']) is not None:
            groups.setdefault(row['group'] or '', []).append(row)
    parts = []
    for group, rows in groups.items():
        rows.sort(key=lambda row: row['x'])
        first, last = (found.mean(row['name']) for row in (rows[0], rows[-1]))
        ends = f'{first:.1f} at {rows[0]["x"]:g} to {last:.1f} at {rows[-1]["x"]:g}'
        parts.append(text('{} from {}', quoted(group), ends) if group else text('from {}', ends))
    if parts:
        yield text('Along {}: {}.', study['figure'].get('x') or 'x', enumerated(parts))


def _tuned(study: Record) -> Iterator[Markup]:
    if not study.get('search'):
        return
    summary = fresh_run_summary(study)
    pairs = [
        text('{} is ahead of {} by {:.1f}', quoted(one['row']), quoted(one['on']), one['by'])
        for one in summary['ahead']
    ]
    undecided = len(summary['unknown'])
    said = enumerated(pairs) if pairs else 'no row is ahead of its base'
    tail = f'; {counted(undecided, "pair")} inconclusive' if undecided else ''
    yield text('Every row was tuned with the same budget: {}{}.', said, tail)


def _sequential(study: Record) -> Iterator[Markup]:
    if plan := study.get('sequential'):
        done = len(plan['looks'])
        yield text(
            'Sequential analysis, {} so far: all verdicts together keep the 5 %.',
            counted(done, 'look'),
        )


def _claims(study: Record) -> Iterator[Markup]:
    if claims := study.get('claims'):
        counts = Counter(claim['verdict'] for claim in claims)
        verdicts = in_words([f'{number} {verdict}' for verdict, number in counts.most_common()])
        number = counted(len(claims), 'claim')
        yield text('Of {} of the paper: {}. <a href="#claims">All claims</a>', number, verdicts)


# ---- Next


@dataclass(frozen=True)
class Step:
    """Something to run next.

    Args:
        title: What to do.
        reason: What it decides.
        cost: Runs and time; '' if unknown.
        command: The command line; '' if there is none.
    """

    title: Markup
    reason: Markup
    cost: str
    command: str


def next_steps(study: Record) -> list[Step]:
    """Return what to do next: first what makes the study valid, then the cheapest open question."""
    found = all_findings(study)
    steps: list[Step] = []
    if found:
        steps += _fix_confounded(found[0])
    steps += _finish_runs(study)
    if found:
        steps += _look_at_collapse(found[0])
        if not study.get('search'):
            steps += _more_seeds(found[0])
    nothing = Step(
        text('Nothing is open at this scale'),
        text('a larger scale shows whether the answer holds there'),
        '',
        '',
    )
    return steps[:MOST_LISTED] or [nothing] * bool(found)


def command(study: Record, *options: str, seeds: Sequence[int] = ()) -> str:
    """Return the command line of the study with further options; '' if it has none."""
    usual = ('mmairl', 'study', f'{study["name"]}.yaml', '--scale', study['scale']['name'])
    words = study.get('command') or usual
    if not study['name']:
        return ''
    line = shlex.join([*words, *options])
    if not seeds:
        return line
    in_order = list(seeds) == list(range(len(seeds)))
    numbers = (
        f'$(seq 0 {len(seeds) - 1})' if in_order and len(seeds) > 5 else ' '.join(map(str, seeds))
    )
    return f'{line} --seeds {numbers}'


def trained_rows(study: Record) -> list[Record]:
    return [row for row in study['rows'] if not row.get('untrained') and not row.get('given')]


def cost_of(study: Record, runs: int) -> str:
    """Return a number of runs with their time, from the mean of the finished ones."""
    seconds = [
        run['seconds'] for row in trained_rows(study) for run in row['runs'] if run.get('seconds')
    ]
    time = f', {duration(runs * mean(seconds))}' if seconds else ''
    return f'{counted(runs, "run")}{time}'


def _fix_confounded(found: Findings) -> Iterator[Step]:
    study = found.study
    rows = [one.name for one in found.all if one.undeclared]
    if not rows:
        return
    affected = set(rows).union(*(rows_on(study, name) for name in rows))
    keys = next(one.undeclared for one in found.all if one.undeclared)
    yield Step(
        text(
            'Remove the undeclared change of {}, or declare it',
            enumerated([text('<code>{}</code>', key) for key in keys]),
        ),
        text('then rerun {}', counted(len(affected), 'row')),
        cost_of(study, len(affected) * len(study['seeds'])),
        command(study),
    )


def _finish_runs(study: Record) -> Iterator[Step]:
    states = Counter()
    for row in study['rows']:
        states.update(
            {
                seed: state for seed, state, _ in problems_by_seed(study, row) if state != 'done'
            }.values()
        )
    running = states.pop('running', 0)
    left = sum(states.values())
    if not left:
        return
    failed = states['failed']
    title = (
        f'Repeat {counted(failed, "failed run")}'
        if failed == left
        else f'Run the other {counted(left, "run")}'
    )
    also = f'; running: {running}' if running else ''
    yield Step(
        text('{}', title),
        text('finished runs are reused{}', also),
        cost_of(study, left),
        command(study),
    )


def _look_at_collapse(found: Findings) -> Iterator[Step]:
    for name, seeds in found.collapsed.items():
        run = next(one for one in found.rows[name]['runs'] if one['seed'] == seeds[0])
        yield Step(
            text('Find out why {}, seed {}, collapsed', quoted(name), seeds[0]),
            text('comparisons with this row are not tested until its runs learn'),
            'no run',
            shlex.join(['mmairl', 'report', 'health', run['folder']]),
        )
        return


def _more_seeds(found: Findings) -> Iterator[Step]:
    """Yield the seeds that decide the open comparison that needs the fewest."""
    study = found.study
    rows = len(trained_rows(study))
    present = len(study['seeds'])
    if all(one.verdict == ONE_SEED for one in found.all):
        yield Step(
            text('Run {}', counted(FEW_SEEDS - 1, 'more seed')),
            text('one seed decides nothing; three show large effects'),
            cost_of(study, rows * (FEW_SEEDS - 1)),
            command(study, seeds=range(FEW_SEEDS)),
        )
        return
    options = []
    for finding in found.all:
        deviation = finding.stored.get('deviation')
        if finding.verdict == INCONCLUSIVE and deviation:
            size = max(abs(finding.estimate), finding.margin)
            if needed := seeds_for(size, deviation, len(found.all)):
                options.append((max(needed, present + 1), size, finding))
    if not options:
        return
    if study.get('sequential'):
        yield Step(
            text('Continue the sequential analysis'),
            text('open comparisons get more seeds until they are decided'),
            '',
            command(study, '--until-decided'),
        )
        return
    needed, size, finding = min(options, key=lambda one: one[0])
    last = max(study['seeds'], default=-1)
    more = needed - present
    seeds = [*study['seeds'], *range(last + 1, last + 1 + more)]
    yield Step(
        text('Run {} to decide {}', counted(more, 'more seed'), quoted(finding.name)),
        text(
            'enough to show a difference of {:.1f} points with 80 % power; finished runs are reused',
            size,
        ),
        cost_of(study, rows * more),
        command(study, seeds=seeds),
    )
