"""The evidence of a study's page: fairness, noise, cost, tuning, runs, methods and reproduction."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from markupsafe import Markup
from matplotlib.ticker import EngFormatter

from mmairl.report.charts import chart
from mmairl.report.compare_page import differences
from mmairl.report.page import fill
from mmairl.report.sections import CURVES, percent
from mmairl.report.table import html_table, signed
from mmairl.study.pages.answer import command, counted, duration
from mmairl.study.pages.findings import Findings
from mmairl.study.pages.search_section import labels_of, search_runs, search_section
from mmairl.study.pages.study_tables import BLANK, Line
from mmairl.study.statistics.forks import fork_summary, settings_of
from mmairl.study.statistics.power import visible_effect
from mmairl.study.statistics.summary import cost_summary, progress

POINTS = 60  # of a curve, which is drawn in two rows
FLOPS = EngFormatter('FLOP')
SIGNS = dict(good='✓ equal:', bad='✕ not equal:', quiet='○ not checked:')
FORK_HEADS = ('compared with', 'from', 'between trunks', 'within forks', 'equally precise')
Record = Mapping[str, Any]


@dataclass(frozen=True)
class EvidencePart:
    """A folded part of the evidence.

    Args:
        name: The anchor.
        title: The heading.
        summary: One line about the content.
        body: The content.
        bad: Whether the summary names a problem.
    """

    name: str
    title: str
    summary: str
    body: Markup
    bad: bool = False


def trained_runs(study: Record) -> list[Record]:
    runs = [run for row in study['rows'] for run in row['runs']]
    return [run for run in [*runs, *search_runs(study)] if 'of' not in run.get('made', ())]


def evidence_parts(
    study: Record, found: Sequence[Findings], lines: Sequence[Line]
) -> Iterator[EvidencePart]:
    if study.get('claims'):
        yield _claims(study['claims'])
    if paired := study.get('paired_images'):
        body = [Markup('<p>{}</p>').format(line) for line in paired]
        summary = 'two checkpoints, image by image'
        yield EvidencePart('images', 'Test images', summary, Markup().join(body))
    yield _fairness(study)
    if noise := _noise(study, found):
        yield noise
    if cost := cost_summary(study):
        yield _cost(study, cost)
    if study.get('search'):
        count = study['search']['searches']
        summary = f'{counted(count, "search", "searches")} of each row, equal budgets'
        yield EvidencePart('tuning', 'Tuning', summary, search_section(study))
    yield _run_list(study, lines)
    yield _methods(study, found)
    if study.get('assumptions'):
        yield _assumptions(study)
    if study['reading'].strip():
        paragraphs = [Markup('<p>{}</p>').format(part) for part in study['reading'].split('\n\n')]
        summary = 'by the authors of the study, on earlier runs'
        yield EvidencePart('comments', 'Comments', summary, Markup().join(paragraphs))
    yield _reproduction(study)


def _claims(claims: Sequence[Record]) -> EvidencePart:
    rows = []
    for claim in claims:
        sizes = [
            ', '.join(_effect(part[side]) for part in claim['parts']) or BLANK
            for side in ('published', 'measured')
        ]
        reason = f': {claim["reason"]}' if claim['reason'] else ''
        name = Markup('{}<small>{} ({})</small>').format(
            claim['name'], claim['quote'], ', '.join(claim['where'])
        )
        rows.append((name, [claim['verdict'] + reason, *sizes, claim['reading']]))
    heads = ['verdict', 'published effect', 'measured effect', 'comment']
    verdicts = Counter(claim['verdict'] for claim in claims)
    summary = ', '.join(f'{number} {verdict}' for verdict, number in verdicts.most_common())
    return EvidencePart(
        'claims', 'Claims', summary, html_table(heads, rows, words=True, head='claim')
    )


def _effect(value: float | None) -> str:
    return BLANK if value is None else signed(value)


def _listing(names: Sequence[str]) -> Markup:
    codes = [Markup('<code>{}</code>').format(name) for name in names]
    return Markup(' ').join(codes) or Markup(BLANK)


def fairness_summary(study: Record) -> tuple[str, bool]:
    """Return what the fairness check found in one line, and whether it found a problem."""
    fairness = study['fairness']
    if not fairness:
        return 'not checked', False
    undeclared = sum(len(entry['undeclared']) for entry in fairness['before'])
    states = [_check(check)[0] for check in fairness['after']]
    unequal = states.count('bad')
    problems = [counted(undeclared, 'undeclared difference')] if undeclared else []
    problems += [f'{counted(unequal, "check")} not equal'] if unequal else []
    if problems:
        return ', '.join(problems), True
    return f'no undeclared difference, {states.count("good")} of {len(states)} checks equal', False


def _fairness(study: Record) -> EvidencePart:
    fairness = study['fairness']
    summary, bad = fairness_summary(study)
    if not fairness:
        return EvidencePart('fairness', 'Fairness', summary, Markup('<p>No check is recorded.</p>'))
    before = []
    for entry in fairness['before']:
        keys = [_listing(entry[key]) for key in ('declared', 'found', 'undeclared')]
        before.append((entry['row'], [entry['on'], *keys]))
    heads = ['compared with', 'declared to change', 'found to differ', 'undeclared']
    body = fill(
        'study_fairness.html',
        before=html_table(heads, before, words=True, head='row') if before else '',
        checks=[_check(check) for check in fairness['after']],
        signs=SIGNS,
        external=[_external(row) for row in study['rows'] if row.get('given')],
        **_hidden_factors(fairness.get('hidden', ())),
    )
    return EvidencePart('fairness', 'Fairness', summary, body, bad)


def _check(check: Record) -> tuple[str, str, str | Record]:
    """Return state, name and values of a check of finished runs."""
    values = {row: _thousands(value) for row, value in check['values'].items()}
    if check.get('unverified'):
        return 'quiet', f'{check["check"]}: not verified, identity unknown', check['unverified']
    if len(values) < 2:
        return 'quiet', check['check'], 'fewer than two rows record it'
    if check['equal']:
        return 'good', check['check'], next(iter(values.values()))
    return 'bad', check['check'], values


def _thousands(value: int | str) -> str:
    return f'{int(value):,}' if str(value).isdecimal() else str(value)


def _external(row: Record) -> str:
    stated = row.get('trained')
    factors = f'its author states its factors in {stated}' if stated else 'no factors are stated'
    return f'{row["name"]}: trained elsewhere; {factors}.'


def _hidden_factors(checks: Sequence[Record]) -> dict[str, Any]:
    shared = []
    rows = []
    for check in checks:
        if check['equal']:
            shared.append(f'{check["check"]}: {next(iter(check["values"].values()))}')
        else:
            rows += [(check['check'], [row, value]) for row, value in check['values'].items()]
    table = html_table(['row', 'value'], rows, words=True, head='factor') if rows else ''
    return dict(shared='; '.join(shared), hidden=table or Markup(' ') if checks else '')


def _decimals(value: float | None, form: str = '.2f') -> str:
    return BLANK if value is None else format(value, form)


def _noise(study: Record, found: Sequence[Findings]) -> EvidencePart | None:
    labels = labels_of(study)
    tables = []
    for key, family in study.get('noise', {}).items():
        if not any(entry['seeds'] or entry['images'] for entry in family):
            continue
        rows = []
        for entry in family:
            probes = 'none' if entry['probes'] == 0 else _decimals(entry['probes'])
            others = [
                _decimals(entry[name]) for name in ('images', 'effect_seeds', 'effect_images')
            ]
            rows.append((entry['row'], [_decimals(entry['seeds']), probes, *others]))
        heads = [
            'pre-training seeds',
            'classifier seeds',
            'test images',
            'effect, by seeds',
            'effect, by test images',
        ]
        tables.append(html_table(heads, rows, head=labels[key]))
    tables += [_fork_table(study, metric) for metric in study['metrics']]
    tables = list(filter(None, tables))
    if not tables:
        return None
    text = Markup(
        '<p>Seeds: standard deviation of one run’s score. Test images: standard error over the choice of images. '
        'Effects: standard error of the difference to the base row. Intervals above include the seeds only. '
        '“none”: the classifier is not trained, or the first column contains it.</p>'
    )
    return EvidencePart('noise', 'Noise and power', _power(found), text + Markup().join(tables))


def _fork_table(study: Record, metric: Record) -> Markup | str:
    rows = []
    for fork in fork_summary(study, metric['key']):
        name = f'{fork["row"]} (A/A)' if fork['null'] else fork['row']
        spreads = [_decimals(fork[key]) for key in ('between', 'within')]
        rows.append((name, [fork['on'], f'epoch {fork["epoch"]}', *spreads, str(fork['runs'])]))
    return (
        fill('study_forks.html', table=html_table(FORK_HEADS, rows, head=metric['label']))
        if rows
        else ''
    )


def _power(found: Sequence[Findings]) -> str:
    """Return the median spread of the primary score's differences, and the effect that the seeds can show."""
    known = [
        one.stored
        for one in (found[0].all if found else ())
        if one.stored.get('deviation') and one.stored['seeds'] > 1
    ]
    if not known:
        return 'spread by seed, classifier and test images'
    known.sort(key=lambda pair: pair['deviation'])
    middle = known[len(known) // 2]
    visible = visible_effect(middle['deviation'], middle['seeds'], len(found[0].all))
    return (
        f'differences spread by {middle["deviation"]:.1f} points over seeds; {middle["seeds"]} seeds show an effect of '
        f'{visible:.1f} points in four of five studies'
    )


def with_prefix(flops: float) -> str:
    """Return FLOPs with four digits and a prefix, e.g. '2.5 PFLOP'."""
    return FLOPS(float(f'{flops:.4g}'))


def _cost(study: Record, cost: Record) -> EvidencePart:
    labels = labels_of(study)
    rows = []
    for name, run in cost['rows'].items():
        flops = run['flops']
        seconds = run['device_seconds']
        cells = [
            _decimals(run['images'], ',.0f'),
            with_prefix(flops) if flops else BLANK,
            f'{flops / cost["first"]:.2f} ×' if flops else BLANK,
            BLANK if seconds is None else duration(seconds),
        ]
        rows.append((name, cells))
    heads = ['images seen', 'FLOPs', 'FLOPs, of the first row', 'device time']
    body = Markup(
        '<p>One run of each row. FLOPs: all steps, forward and backward, with all views and the teacher; a '
        'multiply-add is two.</p>'
    ) + html_table(heads, rows)
    for key, family in cost['equal'].items():
        body += _equal_cost_table(labels[key], family)
    for (row, on), pair in cost['without'].items():
        body += Markup(
            '<p>{} costs {:.2f} × as much as {}. No checkpoints around the lower cost were measured, so there is no '
            'comparison at equal cost; rows with <code>along</code> provide one.</p>'
        ).format(row, pair['ratio'], on)
    ratios = [run['flops'] / cost['first'] for run in cost['rows'].values() if run['flops']]
    if cost['same']:
        summary = 'all rows cost the same within 1 %'
    else:
        summary = (
            f'up to {max(ratios):.1f} × the FLOPs of the first row' if ratios else 'FLOPs unknown'
        )
    return EvidencePart('cost', 'Cost', summary, body)


def _equal_cost_table(label: str, family: Sequence[Record]) -> Markup:
    rows = []
    for pair in family:
        interval = (
            BLANK if pair['low'] is None else f'{signed(pair["low"])} to {signed(pair["high"])}'
        )
        scores = [f'{score:.1f}' for score in pair['scores']]
        cells = [
            pair['on'],
            with_prefix(pair['flops']),
            *scores,
            signed(pair['estimate']),
            interval,
        ]
        rows.append((pair['row'], cells))
    heads = ['compared with', 'both at', 'score', 'score of the base', 'effect', '95 % interval']
    text = (
        'The costlier run as it was at the FLOPs of the cheaper one, interpolated linearly between its checkpoints. It was '
        'not at the end of its schedule there, which may explain part of the effect.'
    )
    return Markup('<h3>At equal cost</h3><p>{}</p>').format(text) + html_table(
        heads, rows, head=label
    )


def _run_list(study: Record, lines: Sequence[Line]) -> EvidencePart:
    finished, asked = progress(study)
    labels = labels_of(study)
    rows = []
    for number, line in enumerate(lines):
        row = line.row
        base = next((other['runs'] for other in study['rows'] if other['name'] == row['on']), [])
        origin = (
            f'builds on {row["on"]}: {row["factor"] or ""}' if row['on'] else row['factor'] or ''
        )
        if row.get('given'):
            origin = f'{origin}; trained elsewhere, measured by'
        rows.append(
            dict(
                row=row,
                origin=origin,
                settings=_setting_table(base, row['runs']),
                figures=_curve_charts(row['runs'], base),
                runs=[
                    _run(run, f'run-{number}-{place}', labels)
                    for place, run in enumerate(row['runs'])
                ],
            )
        )
    machines = {run['hardware']: None for run in trained_runs(study) if run.get('hardware')}
    hardware = f'Hardware: {", ".join(machines)}.' if machines else ''
    body = fill('study_runs.html', rows=rows, hardware=hardware)
    return EvidencePart('runs', 'Runs', f'{finished} of {asked} finished', body, finished < asked)


def _run(run: Record, anchor: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return a run for the list: its scores, where they come from, and its files."""
    scores = {
        labels.get(key, key): value
        for key, value in run.get('scores', {}).items()
        if isfinite(value)
    }
    exact = ', '.join(f'{label}: {value:.4f}' for label, value in scores.items())
    versions = ', '.join(f'{name} {version}' for name, version in run.get('versions', {}).items())
    time = 'rescaling' if 'of' in run.get('made', ()) else 'training'
    facts = {
        'scores': exact,
        'last message': run.get('error'),
        time: f'{run["seconds"]:,.1f} s' if run.get('seconds') is not None else '',
        'images seen': f'{run["images_seen"]:,}' if run.get('images_seen') is not None else '',
        'hardware': run.get('hardware'),
        'SHA-256': run.get('sha256'),
        'code': run.get('git'),
        'identity unknown': ', '.join(run.get('unverified', ())),
        **{f'source of {name}': digest for name, digest in (run.get('sources') or {}).items()},
        'versions': versions,
        'weights of': run.get('given'),
    }
    links = [('folder', run['folder'])]
    if run.get('checkpoint'):
        links.insert(0, ('checkpoint', f'{run["folder"]}/{run["checkpoint"]}'))
    return dict(
        anchor=anchor,
        seed=run['seed'],
        state=run['state'],
        scores=' · '.join(f'{label}: {value:.2f}' for label, value in scores.items()),
        facts=[(name, value) for name, value in facts.items() if value],
        links=links,
        config=run.get('config_text'),
    )


def _curve_charts(runs: Sequence[Record], base: Sequence[Record]) -> list[Markup]:
    """Return a chart for each curve of a row's runs, a line per seed."""
    curves = {f'seed {run["seed"]}': run.get('curves', {}) for run in runs}
    curves |= {f'base, seed {run["seed"]}': run.get('curves', {}) for run in base}
    names = dict.fromkeys(name for run in runs for name in run.get('curves') or ())
    charts = []
    for name in names:
        series = {key: percent(name, own[name]) for key, own in curves.items() if name in own}
        if all(curve == next(iter(series.values())) for curve in series.values()):
            series = {'all seeds': next(iter(series.values()))}  # a schedule
        title = CURVES.get(name, name.replace('_', ' '))
        charts.append(chart(series, title, 'step', points=POINTS))
    return charts


def _setting_table(base: Sequence[Record], runs: Sequence[Record]) -> Markup | str:
    """Return a table of the settings in which a row differs from its base row."""
    if not base:
        return ''
    settings = {}
    for name, side in (('base', base), ('this row', runs)):
        settings[name] = {key: str(value) for key, value in settings_of(side).items()}
    heads, lines = differences(settings)
    return html_table(heads, lines, words=True) if lines else ''


def _methods(study: Record, found: Sequence[Findings]) -> EvidencePart:
    notes = []
    looks = study.get('looks', ())
    plan = study.get('sequential')
    if plan:
        notes = [f'{plan["words"][:1].upper()}{plan["words"][1:]}.', *plan['looks']]
    elif len(looks) > 1:
        notes.append(
            f'This page was written {len(looks)} times as runs finished. Each look adds a chance of a false difference '
            'that the 5 % do not include; --until-decided keeps them over all looks.'
        )
    crossed = [one.crossed for one in found if one.crossed]
    for effects in crossed:
        notes += _design_notes(effects)
    body = fill(
        'study_methods.html',
        crossed=f'The design: {study["design"]["words"]}.' if crossed else '',
        notes=notes,
        tables=[_improvement_table(one) for one in found if not one.crossed],
    )
    paired = all(one.stored.get('blocks', True) for each in found[:1] for one in each.all)
    pairing = 'paired by seed' if paired else 'not all pairs share seeds'
    margin = f', equivalence margin ±{found[0].all[0].margin:g}' if found else ''
    return EvidencePart('methods', 'Methods', f'{pairing}, Holm-corrected{margin}', body)


def _design_notes(effects: Record) -> list[str]:
    notes = [f'{effects["runs"]} runs{", with seeds as blocks" if effects["blocks"] else ""}.']
    if not effects['exact']:
        notes.append(
            'The design does not measure all combinations: shares leave out interactions of three factors and more.'
        )
    if effects.get('collapsed'):
        notes.append(f'Collapsed, and left out of the effects: {"; ".join(effects["collapsed"])}.')
    if effects.get('alone'):
        runs = '; '.join(effects['alone'])
        notes.append(f'Also left out, as the only run of its row that learned: {runs}.')
    return notes


def _improvement_table(found: Findings) -> Markup:
    rows = []
    for one in found.all:
        share = one.stored.get('improvement')
        text = '{:.2f} ({:.2f} to {:.2f})'.format(*share) if share else BLANK
        test = 'paired' if one.stored.get('blocks') else 'independent'
        rows.append((one.name, [one.on, str(one.stored.get('seeds', '')), test, text]))
    heads = ['compared with', 'seeds', 'test', 'probability of improvement (95 % interval)']
    return html_table(heads, rows, words=True, head=found.label)


def _assumptions(study: Record) -> EvidencePart:
    items = []
    for assumption, names in study['assumptions'].items():
        rows = ', '.join(names) if len(names) < len(study['rows']) else 'all rows'
        items.append(Markup('<li>{} <span class="quiet">({})</span></li>').format(assumption, rows))
    body = Markup('<ul>{}</ul>').format(Markup().join(items))
    summary = f'{len(items)} choices that the papers do not state'
    return EvidencePart('assumptions', 'Assumptions', summary, body)


def _reproduction(study: Record) -> EvidencePart:
    body = Markup(
        '<p><code>{}</code></p><p>Next to this page: <code>study.json</code> has every number, <code>table.md</code> '
        'and <code>table.tex</code> the table of scores. Figures for papers: <code>mmairl report study . --figures '
        'figures</code></p>'
    ).format(command(study))
    return EvidencePart(
        'reproduce', 'Reproduction', 'command, study.json, configs, checkpoints', body
    )
