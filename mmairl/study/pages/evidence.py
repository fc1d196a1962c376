"""The evidence on a study page: claims, fairness, noise, cost, tuning, runs, methods and reproduction.

A row of a study is one configuration, usually trained with several seeds. Its base row is the row with which it is compared.

Each part of the evidence is a section that the reader can unfold. For each part, a function returns the summary of the section
and the values of its template, `part_NAME.html`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from markupsafe import Markup

from mmairl.report.compare_page import differences
from mmairl.report.figures import chart
from mmairl.report.page import fill
from mmairl.report.sections import CURVES, percent
from mmairl.study.pages.answer import command
from mmairl.study.pages.findings import Findings
from mmairl.study.pages.search_section import search_runs, search_values
from mmairl.study.pages.study_tables import Line, labels_of
from mmairl.study.pages.words import counted, tallied
from mmairl.study.statistics.forks import fork_summary, row_settings
from mmairl.study.statistics.power import visible_effect
from mmairl.study.statistics.summary import cost_summary, progress

# Curves are drawn with at most this number of points, which keeps the page small.
POINTS = 60
Record = Mapping[str, Any]


@dataclass(frozen=True)
class PageData:
    """The data from which the functions build the parts.

    Args:
        study: The record of the study.
        found: The findings on each score.
        lines: The lines of the table of scores, one for each row.
    """

    study: Record
    found: Sequence[Findings]
    lines: Sequence[Line]


@dataclass(frozen=True)
class Content:
    """The content of one part of the evidence.

    Args:
        summary: A line that is visible while the part is folded.
        values: The values of the part's template, in addition to the study.
        bad: Whether the summary reports a problem.
    """

    summary: str
    values: Mapping[str, Any]
    bad: bool = False


def evidence_parts(
    study: Record, found: Sequence[Findings], lines: Sequence[Line]
) -> Iterator[tuple[str, str, Content, Markup]]:
    """Yield the anchor, heading, content and HTML of each part. Parts without content are skipped."""
    data = PageData(study, found, lines)
    for name, (title, build) in PARTS.items():
        if content := build(data):
            body = fill(f'part_{name}.html', study=study, **content.values)
            yield name, title, content, body


def trained_runs(study: Record) -> list[Record]:
    runs = [run for row in study['rows'] for run in row['runs']]
    return [run for run in [*runs, *search_runs(study)] if 'of' not in run.get('made', ())]


def _claims(of: PageData) -> Content | None:
    verdicts = [claim['verdict'] for claim in of.study.get('claims', ())]
    return Content(', '.join(tallied(verdicts)), {}) if verdicts else None


def _images(of: PageData) -> Content | None:
    return Content('two checkpoints, image by image', {}) if of.study.get('paired_images') else None


def _fairness(of: PageData) -> Content:
    summary, bad = fairness_summary(of.study)
    checks = [_check(check) for check in of.study['fairness'].get('after', ())]
    return Content(summary, dict(checks=checks), bad)


def fairness_summary(study: Record) -> tuple[str, bool]:
    """Return the result of the fairness check as one line, and whether it is a problem."""
    fairness = study['fairness']
    if not fairness:
        return 'not checked', False
    undeclared = sum(len(entry['undeclared']) for entry in fairness['before'])
    states = [_check(check)[0] for check in fairness['after']]
    unequal = states.count('bad')
    problems = [counted(undeclared, 'undeclared difference')] if undeclared else []
    if unequal:
        problems.append(f'{counted(unequal, "property differs", "properties differ")} between rows')
    if problems:
        return ', '.join(problems), True
    equal = f'{states.count("good")} of {len(states)} properties equal in all rows'
    return f'no undeclared difference, {equal}', False


def _check(check: Record) -> tuple[str, str, str | Record]:
    """Return the state, the name and the details of one fairness check on finished runs.

    The state is 'good', 'bad', or 'quiet' if the property was not checked. The details are the common value of all rows, the
    value of each row if they differ, or the reason why the property was not checked.
    """
    name = check['check']
    values = {row: _thousands(value) for row, value in check['values'].items()}
    if check.get('unverified'):
        return 'quiet', f'{name}, identity unknown', check['unverified']
    if len(values) < 2:
        return 'quiet', name, 'recorded by fewer than two rows'
    if check['equal']:
        return 'good', name, next(iter(values.values()))
    return 'bad', name, values


def _thousands(value: int | str) -> str:
    return f'{int(value):,}' if str(value).isdecimal() else str(value)


def _noise(of: PageData) -> Content | None:
    labels = labels_of(of.study)
    families = {}
    for key, family in of.study.get('noise', {}).items():
        if any(entry['seeds'] or entry['images'] for entry in family):
            families[labels[key]] = family
    forks = {label: fork_summary(of.study, key) for key, label in labels.items()}
    forks = {label: family for label, family in forks.items() if family}
    if not families and not forks:
        return None
    return Content(_power(of.found), dict(families=families, forks=forks))


def _power(found: Sequence[Findings]) -> str:
    """Return the median spread of the comparisons, and the smallest effect that is detectable at this spread, as text."""
    findings = found[0].all if found else ()
    known = [one.stored for one in findings if one.stored.get('deviation')]
    known = [pair for pair in known if pair['seeds'] > 1]
    if not known:
        return 'spread over seeds, classifiers and test images'
    known.sort(key=lambda pair: pair['deviation'])
    middle = known[len(known) // 2]
    visible = visible_effect(middle['deviation'], middle['seeds'], len(findings))
    return (
        f'median standard deviation of a difference over seeds: {middle["deviation"]:.1f} points; {middle["seeds"]} seeds '
        f'detect effects of {visible:.1f} points with 80 % power'
    )


def _cost(of: PageData) -> Content | None:
    cost = cost_summary(of.study)
    if not cost:
        return None
    ratios = [run['flops'] / cost['first'] for run in cost['rows'].values() if run['flops']]
    summary = (
        f'up to {max(ratios):.1f} × the FLOPs of the first trained row'
        if ratios
        else 'FLOPs unknown'
    )
    if cost['same']:
        summary = 'all rows cost the same within 1 %'
    return Content(summary, dict(cost=cost, labels=labels_of(of.study)))


def _tuning(of: PageData) -> Content | None:
    if not of.study.get('search'):
        return None
    count = counted(of.study['search']['searches'], 'search', 'searches')
    return Content(f'{count} for each row, with equal budgets', search_values(of.study))


def _runs(of: PageData) -> Content:
    finished, asked = progress(of.study)
    labels = labels_of(of.study)
    runs = {line.row['name']: line.row['runs'] for line in of.lines}
    rows = []
    for line in of.lines:
        row = line.row
        base = runs.get(row['on'], [])
        entry = dict(
            row=row,
            settings=_setting_table(base, row['runs']),
            figures=_curve_charts(row['runs'], base),
            runs=[(run, _labeled_scores(run, labels)) for run in row['runs']],
        )
        rows.append(entry)
    machines = dict.fromkeys(run.get('hardware') for run in trained_runs(of.study))
    values = dict(rows=rows, hardware=list(filter(None, machines)))
    return Content(f'{finished} of {asked} finished', values, finished < asked)


def _labeled_scores(run: Record, labels: Mapping[str, str]) -> dict[str, float]:
    scores = run.get('scores', {})
    return {labels.get(key, key): value for key, value in scores.items() if isfinite(value)}


def _curve_charts(runs: Sequence[Record], base: Sequence[Record]) -> list[Markup]:
    """Return a chart for each curve that a row's runs recorded, such as the loss.

    Each chart has a line for each seed of the row and of its base row.
    """
    curves = {f'seed {run["seed"]}': run.get('curves', {}) for run in runs}
    curves |= {f'base, seed {run["seed"]}': run.get('curves', {}) for run in base}
    names = dict.fromkeys(name for run in runs for name in run.get('curves') or ())
    charts = []
    for name in names:
        series = {key: percent(name, own[name]) for key, own in curves.items() if name in own}
        first = next(iter(series.values()))
        # A schedule, such as the learning rate, does not depend on the seed, so one line is enough.
        if all(curve == first for curve in series.values()):
            series = {'all seeds': first}
        title = CURVES.get(name, name.replace('_', ' '))
        charts.append(chart(series, title, 'step'))
    return charts


def _setting_table(base: Sequence[Record], runs: Sequence[Record]) -> Markup | str:
    """Return a table of the settings in which a row differs from its base row; '' if there are none."""
    if not base:
        return ''
    settings = {}
    for name, side in (('base', base), ('this row', runs)):
        settings[name] = {key: str(value) for key, value in row_settings(side).items()}
    table = differences(settings)
    return table.html() if table.rows else ''


def _methods(of: PageData) -> Content:
    crossed = [one.crossed for one in of.found if one.crossed]
    primary = of.found[0].all if of.found else []
    tests = crossed[:1] or [one.stored for one in primary]
    paired = all(test.get('blocks', True) for test in tests)
    summary = 'paired by seed' if paired else 'not all comparisons are paired by seed'
    margin = f', equivalence margin ±{primary[0].margin:g}' if primary else ''
    return Content(f'{summary}, Holm-corrected{margin}', dict(found=of.found, crossed=crossed))


def _assumptions(of: PageData) -> Content | None:
    count = len(of.study.get('assumptions', ()))
    return Content(f'{count} choices that the papers do not state', {}) if count else None


def _comments(of: PageData) -> Content | None:
    if not of.study['reading'].strip():
        return None
    return Content('by the authors of the study, on earlier runs', {})


def _reproduction(of: PageData) -> Content:
    return Content('command, study.json, configs, checkpoints', dict(command=command(of.study)))


PARTS: dict[str, tuple[str, Callable[[PageData], Content | None]]] = {
    'claims': ('Claims', _claims),
    'images': ('Test images', _images),
    'fairness': ('Fairness', _fairness),
    'noise': ('Noise and power', _noise),
    'cost': ('Cost', _cost),
    'tuning': ('Tuning', _tuning),
    'runs': ('Runs', _runs),
    'methods': ('Methods', _methods),
    'assumptions': ('Assumptions', _assumptions),
    'comments': ('Comments', _comments),
    'reproduce': ('Reproduction', _reproduction),
}
