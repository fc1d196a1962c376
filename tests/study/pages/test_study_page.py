"""The page of a study and its tables: the arithmetic, the blanks, the links, and names that mean harm."""

import html
import math
import re
from dataclasses import asdict

import pytest
from harness.outline import charts, sound
from markupsafe import escape

from mmairl.study.pages.study_page import write_study_page
from mmairl.study.pages.study_tables import BLANK, columns, latex, markdown, table_lines
from mmairl.study.published import rows
from mmairl.study.statistics.compare_rows import compare

COLUMNS = ('in1k', 'voc07_ap50', 'cityscapes_miou')
PUBLISHED = {
    name: {key: row[key] for key in COLUMNS if key in row}
    for table in ('table1_ladder', 'table2_optimizer_crossover')
    for name, row in rows(f'revisit_airl.{table}').items()
}
NOISE = ((-0.4, 0.1, 0.3), (0.2, -0.5, 0.3), (0.1, 0.3, -0.4))


def run(seed: int, folder: str = 'runs/x', **scores: float) -> dict:
    return dict(
        seed=seed, state='done', error=None, scores=scores, folder=f'{folder}/seed_{seed}', checkpoint='epoch_30.pth',
        sha256='0123456789abcdef' * 4, seconds=118.2 + seed, images_seen=360000, git='b34afd9',
        versions={'torch': '2.11.0'}, hardware='CPU (x86_64)', config_text=f'randomness.seed: {seed}\n',
        start=dict(weights='a', shapes='b', order=f'{seed}'),
    )  # fmt: skip


def row(name: str, runs: list[dict], on: str | None = None, **changes) -> dict:
    usual = dict(config='c.py', factor='a factor' if on else '', changed=['model'], group=None, x=None, published={})
    return {**usual, **changes, 'name': name, 'on': on, 'runs': runs}


def study(rows: list[dict], metrics: tuple[str, ...] = ('k-NN', 'linear'), **changes) -> dict:
    """The record that mmairl.study.collect writes."""
    printed = dict.fromkeys(key for row in rows for key in row['published'])
    found = dict(
        name='ladder', title='One factor at a time', question='Which details make the difference?',
        paper=dict(where='Tab. 1'), scale=dict(name='demo', text='small networks'), seeds=[0, 1, 2],
        metrics=[dict(key=label.lower(), label=label, unit='top-1 %') for label in metrics],
        published_metrics=[dict(key=key, label=key) for key in printed],
        figure=dict(kind='bars'), rows=rows, fairness={}, reading='First.\n\nSecond.',
    )  # fmt: skip
    scores = [metric['key'] for metric in found['metrics']]
    comparisons = {key: [asdict(comparison) for comparison in compare(found, key, 1.0)] for key in scores}
    return {**found, 'comparisons': comparisons, **changes}


def scored(name: str, place: int, level: float, on: str | None = None, **changes) -> dict:
    """A row of three seeds at about this level."""
    runs = [
        run(s, f'runs/{place}', **{'k-nn': level + n, 'linear': level + 4 - n}) for s, n in enumerate(NOISE[place % 3])
    ]
    return row(name, runs, on, **changes)


def ladder() -> dict:
    """Four rows of three seeds, of which one is missing and one has failed."""
    names = ('mocov2', 'plus_syncbn', 'plus_symmetric_loss', 'plus_complex_augmentation')
    levels = (66.1, 66.4, 72.6, 72.1)
    rows = [scored(n, i, levels[i], names[i - 1] if i else None, published=PUBLISHED[n]) for i, n in enumerate(names)]
    for one in (one for row in rows for one in row['runs']):
        one['curves'] = {'loss': [[20, 40], [6.0, 3.0]], 'instance_accuracy': [[20, 40], [0.2, 0.7]]}
    rows[1]['runs'][1] = dict(seed=1, state='missing', folder='runs/1/seed_1')
    rows[3]['runs'][2] = dict(seed=2, state='failed', error='the loss became\nnan at step 310', folder='runs/3/seed_2')
    seen, code = dict.fromkeys(names, 360000), {'mocov2': 'b34afd9', 'plus_syncbn': 'b34afd9 with changes'}
    before = [
        dict(row=row['name'], on=row['on'], declared=['model'], found=['model'], undeclared=[]) for row in rows[1:]
    ]
    before[0]['undeclared'] = ['optim_wrapper.lr']
    after = [dict(check='images seen', equal=True, values=seen), dict(check='code', equal=False, values=code),
             dict(check='software', equal=True, values=dict(mocov2='torch 2.11.0'))]  # fmt: skip
    hidden = [dict(check='precision', equal=True, values=dict.fromkeys(names, 'bfloat16')),
              dict(check='rate', equal=False, values=dict(mocov2='outside', plus_syncbn='inside'))]  # fmt: skip
    return study(rows, fairness=dict(before=before, after=after, hidden=hidden))


def drawn_as_lines() -> dict:
    """Two frameworks over the length of pre-training."""
    rows = [
        scored(f'{group}, {x} epochs', place, 69 + math.log(x), group=group, x=x, published=dict(in1k=70.0 + place))
        for group in ('MoCo v2+', 'BYOL')
        for place, x in enumerate((100, 300, 1000))
    ]
    return study(rows, figure=dict(kind='lines', x='epochs'))


def tiny(**values: tuple[float, ...]) -> dict:
    """A study of one metric with the given scores; each row builds on the one before."""
    rows = []
    for name, line in values.items():
        rows.append(row(name, [run(s, **{'k-nn': v}) for s, v in enumerate(line)], rows[-1]['name'] if rows else None))
    return study(rows, ('k-NN',), seeds=[])


@pytest.fixture(scope='module')
def pages(tmp_path_factory):
    """Each of the two studies with its page."""
    folder = tmp_path_factory.mktemp('pages')
    made = [make() for make in (ladder, drawn_as_lines)]
    return [(data, write_study_page(data, folder / f'{n}' / 'index.html').read_text()) for n, data in enumerate(made)]


@pytest.fixture
def page(tmp_path):
    return lambda study: write_study_page(study, tmp_path / 'index.html').read_text()


def text_of(markup: str) -> str:
    return ' '.join(html.unescape(re.sub(r'<[^>]+>', ' ', markup)).split())


def body_of(text: str) -> str:
    """The main table's rows."""
    return re.search(r'class="scroll study">.*?<tbody>(.*?)</tbody>', text, re.DOTALL)[1]


def body_rows(text: str) -> list[str]:
    return text[text.index(r'\midrule') : text.index(r'\bottomrule')].splitlines()[1:]


def numbers(text: str) -> list[str]:
    """The decimal numbers in order, whatever is set around them."""
    return re.findall(r'[-+]?\d+\.\d+', text.replace('−', '-'))


def test_mean_sample_deviation_and_difference_are_the_closed_forms():
    one, two = (line.cells[0] for line in table_lines(tiny(a=(70.0, 72.0, 74.0), b=(80.0, 81.0))))
    assert (one.value, one.spread, one.n, one.change) == ('72.0', '± 2.0', 3, '')
    # The deviation of 80 and 81 with n - 1 is sqrt(0.5).
    assert (two.value, two.spread, two.n, two.change) == ('80.5', '± 0.7', 2, '+8.5')
    # Quantities about 1 keep three decimals, and a minus is a minus.
    one, two = (line.cells[0] for line in table_lines(tiny(a=(-1.52, -1.54), b=(-2.95, -2.95))))
    assert (one.value, one.spread, two.change) == ('−1.530', '± 0.014', '−1.420')
    # A difference is in parentheses unless the test says that the rows differ.
    found = tiny(a=(70.0, 72.0, 74.0), b=(73.0, 74.0, 75.0))
    assert table_lines(found)[1].cells[0].change == '(+2.0)'
    found['comparisons'] = {'k-nn': [dict(row='b', metric='k-nn', verdict='differs')]}
    assert table_lines(found)[1].cells[0].change == '+2.0'


def test_a_strip_has_a_mark_a_seed_on_the_scale_of_its_column(page):
    found = tiny(a=(70.0, 72.0), b=(80.0,))
    found['intervals'] = {'k-nn': {'a': (60.0, 76.0)}}
    strips = re.findall('<svg class="strip".*?</svg>', body_of(page(found)))
    # From 69 to 81: the numbers with a tenth of their range beside them. The interval goes on to the left.
    assert [re.findall('cx="([^"]+)%"', strip) for strip in strips] == [['8.3', '25.0'], ['91.7']]
    assert 'x1="0.0%" x2="58.3%"' in strips[0] and 'x1' not in strips[1]


def test_what_is_not_printed_stays_blank_and_so_do_differences_to_it():
    found = ladder()
    place = [column.key for column in columns(found)].index('in1k')
    cells = [(line.cells[place].value, line.cells[place].change) for line in table_lines(found)]
    assert cells == [('67.2', ''), (BLANK, ''), ('72.0', BLANK), ('72.4', '+0.4')]


def test_measured_less_published_exists_for_the_same_metric_only():
    assert [column.kind for column in columns(ladder())] == ['measured'] * 2 + ['published'] * 3
    scores = [run(s, in1k=70.0 + s) for s in range(3)]
    rows = [row(name, scores, published=PUBLISHED[name]) for name in ('mocov2', 'plus_syncbn')]
    found = study(rows, ('in1k',))
    assert [column.kind for column in columns(found)][:4] == ['measured', 'published', 'gap', 'published']
    assert [line.cells[2].value for line in table_lines(found)] == ['+3.8', BLANK]  # 71.0 - 67.2, and none printed


def test_missing_failed_and_diverged_runs_are_said_and_not_averaged(page):
    found = study([scored(name, place, 66.0) for place, name in enumerate('abcd')])
    found['rows'][1]['runs'].pop(1)
    found['rows'][3]['runs'][2].update(state='failed', error='the loss became\nnan at step 310')
    found['rows'][0]['runs'][0]['scores']['k-nn'] = math.nan
    del found['rows'][1]['runs'][1]['scores']['linear']
    found['rows'][2]['runs'] = found['rows'][2]['runs'][:1]
    found['rows'][3]['runs'][0].update(state='waiting')
    found['rows'][3]['runs'][1].update(state='running', error='training 12% (0:00:03 ago)')
    found['rows'][2]['runs'][0]['left_out'] = {'linear': {'unreadable test images': 24}}
    found['rows_left_out'] = ["'e' is left out: at demo it would run as 'd' does"]
    whole = page(found)
    assert 'runs finished, 1 waiting, 1 running, 1 failed<' in whole
    text = text_of(body_of(whole))
    for sentence in (
        'seed 1: has not run', 'seed 2: failed: the loss became nan at step 310', 'seed 0: k-NN is nan',
        'seed 2: linear was not measured', 'seeds 1, 2: has not run', 'seed 1: is running: training 12% (0:00:03 ago)',
        'seed 0: waits for runs that it takes something from', 'seed 0: linear leaves out 24 unreadable test images',
    ):  # fmt: skip
        assert sentence in text, sentence
    assert "'e' is left out: at demo it would run as 'd' does." in text_of(whole)
    assert "- 'e' is left out" in markdown(found) and 'leaves out 24 unreadable' in markdown(found)
    cells = [line.cells[0] for line in table_lines(found)]
    assert [cell.n for cell in cells] == [2, 2, 1, 0] and cells[2].spread == '' and 'nan' not in cells[0].value


def test_a_study_without_any_run_still_has_its_page(page):
    found = {**ladder(), 'metrics': [], 'comparisons': {}, 'fairness': {}}
    for row in found['rows']:
        row['runs'] = []
    text = page(found)
    assert text.count('seeds 0, 1, 2: has not run') == 4
    assert '0 of 12' in text and 'No check of it is on record.' in text


def test_the_page_is_sound_self_contained_and_every_run_is_linked(pages):
    for found, text in pages:
        outline = sound(text)
        runs = {f'run-{i}-{j}' for i, row in enumerate(found['rows']) for j in range(len(row['runs']))}
        assert runs == {name for name in outline.ids if re.fullmatch(r'run-\d+-\d+', name)}
        assert runs <= set(re.findall(r'href="#([^"]+)"', body_of(text)))
        outside = [ref for ref in outline.references if not ref.startswith('#')]
        assert outside and all(ref.startswith('./runs/') for ref in outside)


def test_markdown_and_latex_have_the_numbers_of_the_page(pages):
    for found, text in pages:
        on_page = [numbers(text_of(row)) for row in re.findall(r'<tr>(.*?)</tr>', body_of(text), re.DOTALL)]
        in_markdown = [numbers(line) for line in markdown(found).splitlines() if line.startswith('|')][2:]
        in_latex = [numbers(line) for line in body_rows(latex(found))]
        assert in_markdown == on_page == in_latex and all(len(row) >= 4 for row in on_page)


def test_each_run_tells_where_it_came_from(pages):
    text = pages[0][1]
    block = re.search(r'<details class="run" id="run-0-0">(.*?)</dl>.*?</details>\s*</details>', text, re.DOTALL)[0]
    for fact in ('0123456789abcdef', 'torch 2.11.0', 'b34afd9', '118.2 s', '360,000', 'randomness.seed: 0'):
        assert fact in block, fact
    assert 'href="./runs/0/seed_0/epoch_30.pth"' in block and 'href="./runs/0/seed_0"' in block
    assert text.count('<b>instance accuracy, %</b>') == 4  # a chart a row, with all its seeds


def test_a_page_that_is_mailed_has_each_row_beside_the_one_that_it_builds_on(page):
    found = ladder()
    for place, rate in enumerate((0.5, 0.25)):
        found['rows'][place]['runs'][0]['config_text'] = (
            f'model: {{type: A}}\noptim:\n  lr: {rate}\n  betas: !!python/tuple [0.9, 0.99]\nwork_dir: {place}\n'
        )
    text = page(found)
    losses = next(chart for chart in charts(text)[2:] if chart['title'] == 'loss')['series']
    own = {line['name']: line['y'] for line in losses}
    assert own == {key: [6, 3] for key in ('seed 0', 'seed 2', 'base, seed 0', 'base, seed 1', 'base, seed 2')}
    table = re.search(r'what differs from the base</summary>.*?<tbody>(.*?)</tbody>', text, re.DOTALL)[1]
    assert text_of(table) == 'base 0.5 this row 0.25' and not any('compare' in ref for ref in sound(text).references)


def test_verdicts_stand_on_the_page_with_their_intervals(pages, page):
    found, text = pages[0]
    assert text.count('class="effects"') == 2 and text.count('class="strip effect') == 2 * len(
        found['comparisons']['k-nn']
    )
    table = text_of(re.search(r'class="effects">.*?<tbody>(.*?)</tbody>', text, re.DOTALL)[1])
    symmetric = found['comparisons']['k-nn'][1]
    low, high = (f'{symmetric[end]:+.1f}'.replace('-', '−') for end in ('low', 'high'))
    assert f'{low} to {high}' in table and ', as blocks' in table and symmetric['seeds'] == 2  # a seed is missing
    assert 'one seed: no verdict' in page(tiny(a=(1.0, 2.0), b=(3.0,)))


def test_fairness_says_equal_unequal_and_not_checked_and_what_papers_do_not_print(pages):
    text = text_of(pages[0][1])
    for sentence in (
        '✓ equal images seen: 360,000', '✕ unequal code mocov2: b34afd9 plus_syncbn: b34afd9 with changes',
        '○ not checked software',  # one row is equal to itself, which says nothing
        'In all rows: precision: bfloat16.', 'rate mocov2 outside rate plus_syncbn inside',
    ):  # fmt: skip
        assert sentence in text, sentence
    assert '1 undeclared differences' in text


HOSTILE = '<script>alert(1)</script> & "x" \' $y_1$ 100% #{}~^\\ | _a_ **b** `c` ]]>'


def test_hostile_names_stay_text(page):
    found = ladder()
    found['title'] = found['question'] = found['reading'] = found['scale']['text'] = HOSTILE
    found['metrics'][0]['label'] = found['metrics'][0]['unit'] = found['published_metrics'][0]['label'] = HOSTILE
    second, fairness = found['rows'][1], found['fairness']
    second['name'] = second['factor'] = second['config'] = second['group'] = HOSTILE
    second['runs'][0].update(
        state='failed', error=HOSTILE, folder='//evil.example/<x>"', config_text=HOSTILE, git=HOSTILE
    )
    second['runs'][2].update(folder='javascript:alert(1)', hardware=HOSTILE, versions={HOSTILE: HOSTILE})
    fairness['before'][0].update(row=HOSTILE, found=[HOSTILE], undeclared=[HOSTILE])
    fairness['after'][1]['values'] = fairness['hidden'][1]['values'] = {HOSTILE: HOSTILE, 'b': 'c'}
    text = page(found)
    outline = sound(text)
    assert '<script>alert' not in text and str(escape(HOSTILE)) in text
    links = [ref for ref in outline.references if not ref.startswith('#')]
    assert all(ref.startswith('./') for ref in links)
    assert './javascript%3Aalert%281%29' in links and './evil.example/%3Cx%3E%22' in links

    text = markdown(found)
    table = [line for line in text.splitlines() if line.startswith('|')]
    bars = {len(re.findall(r'(?<!\\)\|', line)) for line in table}
    assert len(bars) == 1 and len(table) == 2 + 4  # no cell of any row is split
    assert '<script' not in text and r'\*\*b\*\* \`c\`' in text

    text = latex(found)
    assert r'\$y\_1\$ 100\% \#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}' in text
    depth = [1 if brace == '{' else -1 for brace in re.findall(r'(?<!\\)[{}]', text)]
    assert sum(depth) == 0 and all(sum(depth[:i]) >= 0 for i in range(len(depth)))
    assert not re.search(r'(?<!\\)[#]', text) and len(re.findall(r'(?<!\\)\$', text)) % 2 == 0
    counts = {len(re.findall(r'(?<!\\)&', line)) for line in body_rows(text)}
    assert counts == {1 + 2 * 5}  # name, factor, and a number and a difference a column


def test_tables_are_booktabs_and_lists_that_no_name_breaks():
    text = latex(ladder())
    for rule in (r'\toprule', r'\midrule', r'\bottomrule', r'\cmidrule(lr){3-6}', r'\cmidrule(lr){7-12}'):
        assert text.count(rule) == 1, rule
    assert r'\multicolumn{4}{c}{measured} & \multicolumn{6}{c}{published}' in text
    # A bracket would be an argument of the line break, a plus a list within the list.
    assert '\n{[}a] & ' in latex(tiny(**{'[a]': (70.0, 71.0)}))
    assert '\n- Row + b, seed 0: k-NN is nan' in markdown(tiny(**{'a': (1.0,), '+ b': (math.nan,)}))


def effect(name: str, verdict: str, estimate: float | None, half: float | None = None, aliases=()) -> dict:
    low, high = (None, None) if half is None else (estimate - half, estimate + half)
    factors = tuple(name.split(' × '))
    own = dict(name=name, factors=factors, asked=len(factors) == 1, aliases=aliases)
    return dict(own, verdict=verdict, estimate=estimate, low=low, high=high)


def crossed() -> dict:
    """The ladder's record with what `mmairl.study.statistics.attribution` says of a design."""
    effects = [
        effect('predictor', 'equivalent', 0.2, 0.5),
        effect('momentum <ascending>', 'differs', 8.0, 2.0, ('−predictor × symmetric loss',)),
        {**effect('symmetric loss', 'differs', -1.0, 2.5), 'collapsed': (9, 1), 'share': 0.0123},
        effect('predictor × symmetric loss', 'not estimable: runs are missing', None),
        effect('momentum <ascending> × symmetric loss', 'undecided', 1.5, 2.0),
    ]
    shares = [
        dict(factor=name, estimate=value, low=value - 2, high=value + 2)
        for name, value in (('predictor', 0.2), ('momentum', 8.0))
    ]
    found = dict(
        margin=1.0, runs=23, blocks=True, effects=effects, shares=shares, exact=False, alone=['a, seed 1'],
        gain=dict(factor='all factors', estimate=8.2, low=None, high=None),
    )  # fmt: skip
    return {**ladder(), 'design': dict(words='a half-fraction of resolution III'), 'attribution': {'k-nn': found}}


def test_the_effects_of_factors_and_their_shares_stand_on_the_page(page):
    text = page(crossed())
    sound(text)
    assert 'What makes a difference?' not in text  # rows one by one would be a second family of verdicts
    section = text[text.index('Which factor did it?') : text.index('What to make of it</h2>')]
    said = text_of(section)
    # One of the five effects cannot be estimated; +8 with its interval of 6 to 10 on a scale of -3.5 to 10.
    strips = re.findall(
        r'class="strip effect (\w+)".*?<line x1="([^"]+)%" x2="([^"]+)%".*?<circle cx="([^"]+)%"', section
    )
    assert len(strips) == 4 and ('differs', '70.4', '100.0', '85.2') in strips
    assert 'a half-fraction of resolution III.' in said
    for sentence in (
        'momentum <ascending> +8.0 +6.0 to +10.0 higher −predictor × symmetric loss',
        'predictor × symmetric loss — — not estimable: runs are missing nothing', 'predictor +0.2 −1.8 to +2.2',
        'all factors +8.2 —', 'equivalent within ±1', '23 runs, with seeds as blocks.',
        'shares leave out interactions',
        'differs in how many runs collapse collapsed: 9 against 1, exact test p = 0.012',
        'Left out as well, each the only run of its row that learned: a, seed 1.',
    ):  # fmt: skip
        assert sentence in said, sentence


def test_cost_and_noise_stand_on_the_page_and_what_is_not_known_is_blank(page):
    found = tiny(cheap=(50.0, 52.0), dear=(60.0, 61.0), same=(60.0, 62.0))
    rows = dict(
        cheap=dict(images=1200, flops=2.5e15, device_seconds=7300.0), dear=dict(images=1200, flops=5e15, device_seconds=None),
        same=dict(images=None, flops=None, device_seconds=None),
    )  # fmt: skip
    equal = dict(row='dear', on='cheap', ratio=2.0, flops=2.5e15)
    known = dict(probes=0.0, images=1.234, effect_seeds=0.5, effect_images=0.7)
    found['noise'] = {
        'k-nn': [dict(known, row='cheap', seeds=1.41), dict(known, row='dear', seeds=None, probes=2.0, images=None)]
    }
    found['cost'] = dict(rows=rows, equal={'k-nn': [equal]})
    text = text_of(page(found))
    assert 'cheap 1.41 none 1.23 0.50 0.70' in text and 'dear — 2.00 — 0.50 0.70' in text
    assert (
        'cheap 1,200 2.5 PFLOP 1.00 × 2.0 h' in text
        and 'dear 1,200 5 PFLOP 2.00 × —' in text
        and 'same — — — —' in text
    )
    assert 'dear costs 2.00 × what cheap does. No checkpoints' in text and 'within 1 %' not in text
    equal.update(scores=[55.0, 51.0], estimate=4.0, low=1.0, high=7.0)
    text = text_of(page(found))
    assert 'dear cheap 2.5 PFLOP 55.0 51.0 +4.0 +1.0 to +7.0' in text and 'No checkpoints' not in text
    rows['dear']['flops'], rows['same'], found['cost']['equal'] = 2.5e15, rows['cheap'], {'k-nn': []}
    assert 'All rows cost the same within 1 %' in text_of(page(found))


def rescaled() -> dict:
    """Winners of searches and their rescaled rows: curves of many rows, and verdicts in many words."""
    found = tiny(SGD=(50.0, 52.0), LARS=(60.0, 61.0), rescaled=(60.0, 62.0), constant=(60.0, 62.0))
    for row, made in zip(found['rows'], (dict(chosen={}), dict(chosen={}), *[dict(of='LARS', constant=None)] * 2)):
        row['untrained'] = None
        for one in row['runs']:
            one['made'] = made
    found['rows'][1]['runs'][1]['seconds'] = 0.0  # a copy of the row as published
    for comparison in found['comparisons']['k-nn']:
        comparison.update(verdict='runs collapsed: no verdict by the mean', share=0.4)
    trials = [
        dict(
            search=0, trial=n, folder=f't/{n}', state='done', seconds=9.0, score=50.0, diverged='', values=dict(rate=n)
        )
        for n in range(4)
    ]
    names = ('SGD', 'LARS', *(f'LARS, rescaled by {n}' for n in range(9)))
    search = dict(
        criterion='k-nn', budget=4.0, margin=1.0, searches=1, dimensions={}, counts=dict(SGD=4), rows=dict(SGD=trials),
        curves={name: [dict(estimate=40.0 + n) for n in range(4)] for name in names},
        forgiving={}, edges=[],
    )  # fmt: skip
    published = dict(rows=[dict(row, runs=[]) for row in found['rows']], comparisons=found['comparisons'])
    return {**found, 'search': search, 'as_published': published}


def test_the_page_names_chosen_and_failed_trials(page):
    found = rescaled()
    trials = found['search']['rows']['SGD']
    trials[2]['chosen'] = True
    trials[3].update(score=None, diverged='failed twice: RuntimeError: out of memory')
    found['search']['rows']['LARS'] = []
    differs = dict(verdict='differs', share=None, row='LARS', on='SGD', estimate=9.0)
    found['comparisons']['k-nn'][0].update(differs)
    text = text_of(page(found))
    assert '1 2 ✓ chosen 50.00' in text and text.count('✓ chosen') == 1
    assert 'SGD, search 1, trial 3 did not finish and counts as the worst: failed twice: RuntimeError' in text
    assert '1 3 not finished' in text
    assert 'LARS is ahead of SGD by 9.0 points' in text and 'from a budget of' not in text


def test_rescaled_rows_count_only_trained_runs(page):
    text = text_of(page(rescaled()))
    # Trained: two winners of SGD, one of LARS, and four trials.
    assert '4 rows 8 of 8 runs finished' in text and 'training in all, 7 runs' in text
