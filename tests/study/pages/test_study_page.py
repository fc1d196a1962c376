"""The page of a study and its tables: numbers, empty cells, links, and hostile names."""

import html
import json
import math
import re
from functools import cache

import pytest
from harness.outline import charts, sound
from markupsafe import escape
from study.pages.planted import (
    PUBLISHED,
    collapsed,
    costly,
    crossed,
    drawn_as_lines,
    ladder,
    rescaled,
    row,
    run,
    scored,
    study,
    tiny,
)

from mmairl.study.pages.findings import Finding
from mmairl.study.pages.study_page import write_figures, write_study_page
from mmairl.study.pages.study_tables import columns, latex, markdown, row_problems, table_lines
from mmairl.study.pages.words import BLANK, duration


@pytest.fixture(scope='module')
def pages(tmp_path_factory):
    """Return the records of two studies, each with the text of its page."""
    folder = tmp_path_factory.mktemp('pages')
    records = [make() for make in (ladder, drawn_as_lines)]
    return [
        (data, write_study_page(data, folder / f'{n}' / 'index.html').read_text()) for n, data in enumerate(records)
    ]


@pytest.fixture
def page(tmp_path):
    return lambda study: write_study_page(study, tmp_path / 'index.html').read_text()


@pytest.fixture(scope='module')
def planted_page(tmp_path_factory):
    """Return a function that writes the page of a study once and returns its text.

    The argument of the function is another function, which returns the record of the study.
    """
    folder = tmp_path_factory.mktemp('planted')
    return cache(lambda make: write_study_page(make(), folder / 'index.html').read_text())


def text_of(markup: str) -> str:
    return ' '.join(html.unescape(re.sub(r'<[^>]+>', ' ', markup)).split())


def section(text: str, name: str) -> str:
    """Return the section, or the collapsible part, that has the id `name`."""
    start = text.index(f'id="{name}"')
    return text[start : min(text.find(end, start) % len(text) for end in ('</section>', '<details class="part"'))]


def body_rows(text: str) -> list[str]:
    return text[text.index(r'\midrule') : text.index(r'\bottomrule')].splitlines()[1:]


def numbers(text: str) -> list[str]:
    """Return the decimal numbers of a text in their order."""
    return re.findall(r'[-+]?\d+\.\d+', text.replace('−', '-'))


def test_cells_are_means_and_sample_deviations():
    one, two = (line.cells[0] for line in table_lines(tiny(a=(70.0, 72.0, 74.0), b=(80.0, 81.0))))
    assert (one.value, one.spread, one.n, one.change) == ('72.0', '± 2.0', 3, '')
    # With a denominator of n - 1, the standard deviation of 80 and 81 is sqrt(0.5).
    assert (two.value, two.spread, two.n, two.change) == ('80.5', '± 0.7', 2, '+8.5 higher')
    # Values around 1 are shown with three decimals.
    one, two = (line.cells[0] for line in table_lines(tiny(a=(-1.52, -1.54), b=(-2.95, -2.95))))
    assert (one.value, one.spread, two.change[:6]) == ('−1.530', '± 0.014', '−1.420')


@pytest.mark.parametrize('one, two, change', [(30.84, 30.76, '0.0'), (30.84, 30.86, '+0.1'), (30.0, 29.0, '−1.0')])
def test_difference_is_that_of_the_shown_digits(one, two, change):
    assert table_lines(tiny(a=(one,), b=(two,)))[1].cells[0].change == f'{change} not tested (one seed)'


def test_unpublished_numbers_stay_blank():
    record = ladder()
    place = [column.key for column in columns(record)].index('in1k')
    cells = [(line.cells[place].value, line.cells[place].change) for line in table_lines(record)]
    assert cells == [('67.2', ''), (BLANK, ''), ('72.0', BLANK), ('72.4', '+0.4')]


def test_gap_requires_measured_and_published_scores():
    assert [column.kind for column in columns(ladder())] == ['measured'] * 2 + ['published'] * 3
    scores = [run(s, in1k=70.0 + s) for s in range(3)]
    record = study([row(name, scores, published=PUBLISHED[name]) for name in ('mocov2', 'plus_syncbn')], ('in1k',))
    assert [column.kind for column in columns(record)][:4] == ['measured', 'published', 'gap', 'published']
    assert [line.cells[2].value for line in table_lines(record)] == ['+3.8', BLANK]


def with_problems() -> dict:
    record = study([scored(name, place, 66.0) for place, name in enumerate('abcd')])
    record['rows'][1]['runs'].pop(1)
    record['rows'][3]['runs'][2].update(state='failed', error='the loss became\nnan at step 310')
    record['rows'][0]['runs'][0]['scores']['k-nn'] = math.nan
    del record['rows'][1]['runs'][1]['scores']['linear']
    record['rows'][2]['runs'] = record['rows'][2]['runs'][:1]
    record['rows'][3]['runs'][0].update(state='waiting')
    record['rows'][3]['runs'][1].update(state='running', error='training 12%')
    record['rows'][2]['runs'][0]['left_out'] = {'linear': {'unreadable test images': 24}}
    record['rows_left_out'] = ["'e' is left out: at the scale demo, its runs would equal those of 'd'"]
    return record


@pytest.mark.parametrize(
    'sentence',
    [
        'seed 1: not run yet',
        'seed 2: failed (the loss became nan at step 310)',
        'seed 0: k-NN is nan',
        'seed 2: linear was not measured',
        'seeds 1, 2: not run yet',
        'seed 1: running (training 12%)',
        'seed 0: waiting for the runs that provide the weights',
        'seed 0: linear leaves out 24 unreadable test images',
        "'e' is left out: at the scale demo, its runs would equal those of 'd'.",
    ],
)
def test_problem_of_a_run_is_next_to_its_row(planted_page, sentence):
    assert sentence in text_of(section(planted_page(with_problems), 'scores'))


@pytest.mark.parametrize('score', [250.0, 1e308, -1.0])
def test_impossible_percentage_is_a_problem(score):
    record = with_problems()
    record['rows'][0]['runs'][0]['scores']['k-nn'] = score
    assert row_problems(record, record['rows'][0]) == [f'seed 0: k-NN is {score:g}']


def test_means_exclude_unfinished_and_nonfinite_runs():
    record = with_problems()
    cells = [line.cells[0] for line in table_lines(record)]
    assert [cell.n for cell in cells] == [2, 2, 1, 0]
    assert cells[2].spread == ''
    assert 'nan' not in cells[0].value
    assert "- 'e' is left out" in markdown(record)


def test_study_without_a_run_has_a_page(page):
    record = {**ladder(), 'metrics': [], 'comparisons': {}, 'fairness': {}}
    for one in record['rows']:
        one['runs'] = []
    text = text_of(page(record))
    assert text.count('seeds 0, 1, 2: not run yet') == 4  # Each of the four rows has this line
    assert 'No score is measured yet; 0 of 12 runs are finished.' in text
    assert 'The fairness of this study was not checked.' in text


def test_page_is_well_formed_and_lists_every_run(pages):
    for record, text in pages:
        outline = sound(text)
        runs = {f'run-{i}-{j}' for i, row in enumerate(record['rows']) for j in range(len(row['runs']))}
        assert runs == {name for name in outline.ids if re.fullmatch(r'run-\d+-\d+', name)}
        outside = [ref for ref in outline.references if not ref.startswith(('#', 'data:'))]
        assert outside
        assert all(ref.startswith('./runs/') for ref in outside)


def test_problems_and_answer_come_before_evidence(pages):
    text = pages[0][1]
    marks = ['class="problems"', 'class="answer"', 'id="effects"', 'id="scores"', 'id="evidence"']
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)


def test_latex_and_markdown_have_equal_numbers(pages):
    for record, _ in pages:
        in_markdown = [numbers(line) for line in markdown(record).splitlines() if line.startswith('|')][2:]
        in_latex = [numbers(line) for line in body_rows(latex(record))]
        assert in_markdown == in_latex
        assert all(len(row) >= 4 for row in in_latex)


def test_run_states_its_origin(pages):
    text = pages[0][1]
    block = text[text.index('id="run-0-0"') : text.index('id="run-0-1"')]
    for fact in ('0123456789abcdef', 'torch 2.11.0', 'b34afd9', '118.2 s', '360,000', 'randomness.seed: 0'):
        assert fact in block, fact
    assert 'href="./runs/0/seed_0/epoch_30.pth"' in block
    assert 'href="./runs/0/seed_0"' in block


def test_curves_and_settings_include_the_base_row(page):
    record = ladder()
    for place, rate in enumerate((0.5, 0.25)):
        record['rows'][place]['runs'][0]['config_text'] = (
            f'model: {{type: A}}\noptim:\n  lr: {rate}\n  betas: !!python/tuple [0.9, 0.99]\nwork_dir: {place}\n'
        )
        record['rows'][place]['runs'][0]['curves']['loss'] = [[20, 40], [6.0, 3.0 + place]]
    text = page(record)
    losses = [chart for chart in charts(text) if chart['title'] == 'loss'][1]['series']
    curves_by_name = {line['name']: line['y'] for line in losses}
    assert curves_by_name['seed 0'] == [6, 4]
    assert curves_by_name['base, seed 0'] == [6, 3]
    assert 'base 0.5 this row 0.25' in text_of(section(text, 'row-1'))


def test_equal_curves_are_drawn_once(pages):
    curves = charts(pages[0][1])
    assert [line['name'] for line in curves[0]['series']] == ['all seeds']


def test_effects_have_interval_verdict_and_marks(pages):
    record, text = pages[0]
    effects = section(text, 'effects')
    symmetric = record['comparisons']['k-nn'][1]
    low, high = (f'{symmetric[end]:+.1f}'.replace('-', '−') for end in ('low', 'high'))
    assert f'+5.8 {low} to {high} inconclusive not significant after correction (Holm); 2 of 3 seeds' in text_of(
        effects
    )
    assert effects.count('class="seed"') == 2 * 6
    assert text_of(effects).count('confounded optim_wrapper.lr also changed') == 2


def test_collapsed_comparison_has_no_effect_size(page):
    text = text_of(section(page(collapsed()), 'effects'))
    assert '+ large batch + large batch is added — not tested (collapsed runs) collapsed runs: 0 against 2' in text


def test_published_effect_of_another_scale_is_labeled(page):
    text = text_of(section(page(costly()), 'effects'))
    assert '◇ published: VOC07 AP50, a different score or scale: compare the signs, not the sizes' in text
    assert '+8.2 +7.0 to +9.4 higher compute × 2 +0.4 same sign' in text


def test_published_effect_is_not_compared_with_counts_of_collapses():
    stored = dict(verdict='differs in how many runs collapse', share=0.01, estimate=3.0, margin=1.0)
    assert Finding('+ large batch', 'base', stored, published=2.0).agreement == ''


@pytest.mark.parametrize(
    'sentence',
    [
        '✓ equal: images seen (360,000)',
        '✕ different: code mocov2: b34afd9 plus_syncbn: b34afd9 with changes',
        '○ not checked: software (recorded by fewer than two rows)',
        'In all rows: precision: bfloat16.',
        'rate mocov2 outside rate plus_syncbn inside',
        '1 undeclared difference, 1 property differs between rows',
    ],
)
def test_fairness_lists_every_check(pages, sentence):
    assert sentence in text_of(section(pages[0][1], 'fairness'))


HOSTILE = '<script>alert(1)</script> & "x" \' $y_1$ 100% #{}~^\\ | _a_ **b** `c` ]]>'


def hostile_ladder() -> dict:
    record = ladder()
    record['title'] = record['question'] = record['reading'] = record['scale']['text'] = HOSTILE
    record['metrics'][0]['label'] = record['metrics'][0]['unit'] = record['published_metrics'][0]['label'] = HOSTILE
    second, fairness = record['rows'][1], record['fairness']
    second['factor'] = second['config'] = second['group'] = HOSTILE
    second['runs'][0].update(
        state='failed', error=HOSTILE, folder='//evil.example/<x>"', config_text=HOSTILE, git=HOSTILE
    )
    second['runs'][2].update(folder='javascript:alert(1)', hardware=HOSTILE, versions={HOSTILE: HOSTILE})
    fairness['before'][0].update(found=[HOSTILE], undeclared=[HOSTILE])
    fairness['after'][1]['values'] = fairness['hidden'][1]['values'] = {HOSTILE: HOSTILE, 'b': 'c'}
    for name in ('row', 'on'):
        for family in record['comparisons'].values():
            for pair in family:
                pair[name] = HOSTILE if pair[name] == second['name'] else pair[name]
    fairness['before'][0]['row'] = record['rows'][2]['on'] = second['name'] = HOSTILE
    return record


def test_hostile_names_stay_text_on_the_page(page):
    text = page(hostile_ladder())
    outline = sound(text)
    assert '<script>alert' not in text
    assert str(escape(HOSTILE)) in text
    links = [ref for ref in outline.references if not ref.startswith(('#', 'data:'))]
    assert all(ref.startswith('./') for ref in links)
    assert './javascript%3Aalert%281%29' in links
    assert './evil.example/%3Cx%3E%22' in links


def test_hostile_names_stay_text_in_markdown():
    text = markdown(hostile_ladder())
    table = [line for line in text.splitlines() if line.startswith('|')]
    bars = {len(re.findall(r'(?<!\\)\|', line)) for line in table}
    assert len(bars) == 1
    assert len(table) == 2 + 4
    assert '<script' not in text
    assert r'\*\*b\*\* \`c\`' in text


def test_hostile_names_stay_text_in_latex():
    text = latex(hostile_ladder())
    assert r'\$y\_1\$ 100\% \#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}' in text
    depth = [1 if brace == '{' else -1 for brace in re.findall(r'(?<!\\)[{}]', text)]
    assert sum(depth) == 0
    assert all(sum(depth[:i]) >= 0 for i in range(len(depth)))
    assert not re.search(r'(?<!\\)[#]', text)
    assert len(re.findall(r'(?<!\\)\$', text)) % 2 == 0
    counts = {len(re.findall(r'(?<!\\)&', line)) for line in body_rows(text)}
    # There are twelve columns: name and factor, and for each of five scores, a number and a
    # difference.
    assert counts == {1 + 2 * 5}


def test_latex_uses_booktabs_and_no_name_breaks_it():
    text = latex(ladder())
    for rule in (r'\toprule', r'\midrule', r'\bottomrule', r'\cmidrule(lr){3-6}', r'\cmidrule(lr){7-12}'):
        assert text.count(rule) == 1, rule
    assert r'\multicolumn{4}{c}{measured} & \multicolumn{6}{c}{published}' in text
    # LaTeX would read a bracket at the start of a line as an argument of the line break. Markdown
    # would read a plus sign at the start as a nested list.
    assert '\n{[}a] & ' in latex(tiny(**{'[a]': (70.0, 71.0)}))
    assert '\n- Row + b, seed 0: k-NN is nan' in markdown(tiny(**{'a': (1.0,), '+ b': (math.nan,)}))


@pytest.mark.parametrize(
    'sentence',
    [
        'momentum <ascending> +8.0 +6.0 to +10.0 higher not separable from −predictor × symmetric loss',
        'predictor × symmetric loss — not estimable: runs are missing',
        'predictor +0.2 −1.8 to +2.2 share',
        'all factors +8.2',
        'equivalent within ±1',
        'differs in how many runs collapse collapsed runs: 9 against 1; exact test p = 0.012',
    ],
)
def test_factor_effects_and_shares_are_in_the_figure(planted_page, sentence):
    text = planted_page(crossed)
    sound(text)
    assert sentence in text_of(section(text, 'effects'))


def test_design_is_described_in_methods(planted_page):
    text = text_of(section(planted_page(crossed), 'methods'))
    assert 'The design consists of a half-fraction of resolution III.' in text
    assert '23 runs are finished. They are compared within seeds (seeds are blocks).' in text
    assert 'If all runs of a row except one collapsed, the remaining run is excluded, too: a, seed 1.' in text


def test_methods_state_whether_a_design_is_paired(page):
    record = crossed()
    assert 'Methods paired by seed' in text_of(section(page(record), 'methods'))
    for effects in record['attribution'].values():
        effects['blocks'] = False
    assert 'Methods not all comparisons are paired by seed' in text_of(section(page(record), 'methods'))


def costed() -> dict:
    record = tiny(cheap=(50.0, 52.0), dear=(60.0, 61.0), same=(60.0, 62.0))
    rows = dict(
        cheap=dict(images=1200, flops=2.5e15, device_seconds=7300.0),
        dear=dict(images=1200, flops=5e15, device_seconds=None),
        same=dict(images=None, flops=None, device_seconds=None),
    )
    equal = dict(row='dear', on='cheap', ratio=2.0, flops=2.5e15)
    errors = dict(probes=0.0, images=1.234, effect_seeds=0.5, effect_images=0.7)
    noise = [dict(errors, row='cheap', seeds=1.41), dict(errors, row='dear', seeds=None, probes=2.0, images=None)]
    return record | dict(noise={'k-nn': noise}, cost=dict(rows=rows, equal={'k-nn': [equal]}))


def test_noise_lists_each_source(page):
    text = text_of(section(page(costed()), 'noise'))
    assert 'cheap 1.41 none 1.23 0.50 0.70' in text
    assert 'dear — 2.00 — 0.50 0.70' in text


def test_cost_lists_rows_and_pairs(page):
    record = costed()
    text = text_of(section(page(record), 'cost'))
    assert 'cheap 1,200 2.5 PFLOP 1.00 × 2.0 h' in text
    assert 'dear 1,200 5 PFLOP 2.00 × —' in text
    assert 'same — — — —' in text
    assert 'dear costs 2.00 times as much as cheap.' in text
    record['cost']['equal']['k-nn'][0].update(scores=[55.0, 51.0], estimate=4.0, low=1.0, high=7.0)
    text = text_of(section(page(record), 'cost'))
    assert 'dear cheap 2.5 PFLOP 55.0 51.0 +4.0 +1.0 to +7.0' in text
    assert 'No checkpoints' not in text


def test_equal_costs_are_stated(page):
    record = costed()
    rows = record['cost']['rows']
    rows['dear']['flops'] = 2.5e15
    rows['same'] = rows['cheap']
    record['cost']['equal'] = {'k-nn': []}
    assert 'all rows cost the same within 1 %' in text_of(section(page(record), 'cost'))


def test_rescaled_rows_count_no_training(page):
    # Only these runs were trained: both runs of SGD, the first run of LARS, and four trials of nine seconds.
    seconds = 2 * 118.2 + 1 + 118.2 + 36
    assert f'8 of 8 finished, 0 seeds, {duration(seconds)} of training' in text_of(page(rescaled()))


@pytest.mark.parametrize('make, names', [(costly, 1), (drawn_as_lines, 3)])
def test_figures_are_written_at_both_widths(tmp_path, make, names):
    files = {path.name for path in write_figures(make(), tmp_path)}
    assert len([name for name in files if name.endswith('_column.pdf')]) == names
    assert {path.suffix for path in tmp_path.iterdir()} >= {'.svg', '.pdf', '.png'}
    assert files == {path.name for path in tmp_path.iterdir()}
    for path in tmp_path.glob('*.pdf'):
        assert b'/FontFile2' in path.read_bytes()  # This is an embedded TrueType font


def test_report_study_writes_page_or_figures(tmp_path, run_tool):
    (tmp_path / 'study.json').write_text(json.dumps(costly()))
    run_tool('tools/report.py', 'study', tmp_path)
    assert (tmp_path / 'page.html').is_file()
    run_tool('tools/report.py', 'study', tmp_path, '--figures', tmp_path / 'out')
    for path in write_figures(costly(), tmp_path / 'again'):
        # The bytes of a figure are reproducible.
        assert path.read_bytes() == (tmp_path / 'out' / path.name).read_bytes()
