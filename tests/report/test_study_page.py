"""The page of a study and its tables: the arithmetic, the blanks, the links, and names that mean harm."""

import copy
import html
import math
import random
import re
from dataclasses import asdict

import pytest
from markupsafe import escape
from outline import sound

from mmairl.report.study_page import duration, write_study_page
from mmairl.report.study_tables import BLANK, columns, latex, markdown
from mmairl.report.study_tables import table_lines as lines
from mmairl.study.published import tables
from mmairl.study.statistics import compare

PRINTED = tables()['revisit_airl']['columns']
ROWS = (  # name, published row, factor, declared, k-NN and logistic regression (made up)
    ('MoCo v2', 'mocov2', '', [], 66.1, 71.9),
    ('+ SyncBN', 'plus_syncbn', 'batch statistics of all processes in place of ShuffleBN, and batch norm in the projector',
     ['model.backbone.norm_cfg', 'model.projector.norm_cfg', 'model.shuffle_bn'], 66.4, 72.0),
    ('+ predictor', 'plus_predictor', 'a predictor on the student', ['model.predictor'], 67.2, 73.1),
    ('+ ascending momentum', 'plus_momentum_ascending', "the teacher's momentum ascends to 1 along a cosine",
     ['default_hooks.momentum'], 67.9, 73.4),
    ('+ symmetric loss (MoCo v2+)', 'plus_symmetric_loss', 'both views are queries', ['model.symmetric'], 70.6, 76.2),
    ('+ complex augmentation', 'plus_complex_augmentation', "BYOL's augmentation",
     ['train_dataloader.dataset.views', 'model.data_preprocessor.views'], 70.1, 75.6),
    ('BYOL (SGD)', 'byol_sgd', "BYOL's loss, without negatives", ['model.head', 'model.queue'], 69.3, 75.1),
)  # fmt: skip


def run(seed: int, noise: random.Random, slug: str, **scores: float) -> dict:
    steps = list(range(20, 1421, 20))
    fall = [6 * math.exp(-step / 300) + 2 + noise.gauss(0, 0.05) for step in steps]
    rise = [min(0.99, 0.75 * (1 - math.exp(-step / 400)) + noise.gauss(0, 0.01)) for step in steps]
    return dict(
        seed=seed, state='done', error=None, scores=scores, folder=f'runs/{slug}/seed_{seed}', checkpoint='epoch_30.pth',
        sha256=''.join(noise.choice('0123456789abcdef') for _ in range(64)), seconds=118.2 + seed, images_seen=360000,
        git='b34afd9', versions={'torch': '2.11.0', 'mmengine': '0.10.7', 'numpy': '2.2.1'},
        hardware='CPU (x86_64), 2 process(es) of 1 thread(s)',
        config_text='\n'.join(f'model.part_{i}.channels: {2**i}' for i in range(9)) + f'\nrandomness.seed: {seed}\n',
        start=dict(weights='a', shapes='b', order=f'{seed}'),
        curves={'loss': [steps, fall], 'instance_accuracy': [steps, rise]},
    )  # fmt: skip


def with_verdicts(study: dict) -> dict:
    """The record with what mmairl.study.collect adds from its runs."""
    scores = [metric['key'] for metric in study['metrics']]
    return {**study, 'comparisons': {key: [asdict(of) for of in compare(study, key, 1.0)] for key in scores}}


def ladder() -> dict:
    """Seven rows of three seeds, of which one is missing and one has failed."""
    noise, printed = random.Random(0), tables()['revisit_airl']
    published = {**printed['table1_ladder'], **printed['table2_optimizer_crossover']}
    rows = []
    for place, (name, key, factor, declared, knn, logreg) in enumerate(ROWS):
        slug = re.sub(r'\W+', '_', name.lower()).strip('_')
        runs = [
            run(s, noise, slug, knn=knn + noise.gauss(0, 0.5), logreg=logreg + noise.gauss(0, 0.5)) for s in range(3)
        ]
        rows.append(dict(
            name=name, config=f'configs/{key}_r50_200e.py', on=ROWS[place - 1][0] if place else None, factor=factor,
            declared=declared, changed=declared, group=None, x=None, published=published[key], runs=runs,
        ))  # fmt: skip
    rows[3]['runs'][1] = dict(seed=1, state='missing', folder='runs/ascending_momentum/seed_1')
    rows[6]['runs'][2] = dict(
        seed=2, state='failed', error='the loss became nan at step 310', folder='runs/byol_sgd/seed_2'
    )
    seen = {row['name']: 360000 for row in rows}
    return with_verdicts(dict(
        name='ladder', title='From MoCo v2 to BYOL, one factor at a time',
        question='Which details that set BYOL apart from MoCo v2 make the difference? Each row adds one to the row above.',
        paper=dict(where='Fig. 2 and Tab. 1', published=True),
        scale=dict(name='demo', text='ResNet-18 of base width 16 on Shapes, 12 000 images of 48 px, 30 epochs, 2 CPU cores'),
        seeds=[0, 1, 2],
        metrics=[dict(key='knn', label='k-NN, k = 20', unit='top-1 %'),
                 dict(key='logreg', label='logistic regression', unit='top-1 %')],
        published_metrics=[dict(key=key, label=key) for key in PRINTED],
        figure=dict(kind='bars'), rows=rows,
        fairness=dict(
            before=[dict(row=row['name'], on=row['on'], declared=row['declared'], found=row['changed'], undeclared=[])
                    for row in rows[1:]],
            after=[dict(check='images seen', equal=True, values=seen),
                   dict(check='code', equal=False, values={'MoCo v2': 'b34afd9', '+ SyncBN': 'b34afd9 with changes'})],
        ),
        reading='The symmetric loss is the largest step, here as in the paper.\n\nThe order of the last two is not decided by '
                'three seeds: their difference is no larger than the spread.',
    ))  # fmt: skip


def grouped() -> dict:
    """Two frameworks by two optimizers."""
    noise, published = random.Random(1), tables()['revisit_airl']['table2_optimizer_crossover']
    study = {
        **ladder(),
        'title': 'The optimizer crossover',
        'comparisons': {},
        'figure': dict(kind='grouped'),
        'rows': [],
        'reading': '',
    }
    scores = {'mocov2plus_sgd': 70.2, 'mocov2plus_lars': 68.8, 'byol_sgd': 69.7, 'byol_lars': 70.4}
    for key, knn in scores.items():
        framework, group = ('MoCo v2+' if 'moco' in key else 'BYOL'), key.split('_')[1].upper()
        runs = [
            run(s, noise, key, knn=knn + noise.gauss(0, 0.5), logreg=knn + 4 + noise.gauss(0, 0.5)) for s in range(3)
        ]
        study['rows'].append(dict(
            name=f'{framework}, {group}', config=f'{key}.py', on=f'{framework}, SGD' if group == 'LARS' else None,
            factor='LARS in place of SGD' if group == 'LARS' else '', declared=[], changed=[], group=group, x=None,
            published=published[key], runs=runs,
        ))  # fmt: skip
    return study


def drawn_as_lines() -> dict:
    """Two frameworks over the length of pre-training."""
    noise = random.Random(2)
    study = {
        **ladder(),
        'title': 'Longer pre-training',
        'comparisons': {},
        'figure': dict(kind='lines', x='epochs'),
        'rows': [],
    }
    for group, level in (('MoCo v2+', 69), ('BYOL', 68)):
        for x in (100, 200, 300, 500):
            score = level + 3 * math.log2(x / 100)
            runs = [
                run(s, noise, f'{x}', knn=score + noise.gauss(0, 0.5), logreg=score + noise.gauss(4, 0.5))
                for s in range(3)
            ]
            study['rows'].append(dict(
                name=f'{group}, {x} epochs', config='c.py', on=None, factor='', declared=[], changed=[], group=group, x=x,
                published=dict(in1k=score + 1), runs=runs,
            ))  # fmt: skip
    return study


def tiny(**values: tuple[float | None, ...]) -> dict:
    """A study of one metric with the given scores; each row builds on the one before."""
    study, above = {**ladder(), 'rows': [], 'comparisons': {}, 'published_metrics': [], 'seeds': []}, None
    study['metrics'] = [dict(key='knn', label='k-NN', unit='%')]
    for name, of in values.items():
        runs = [{**run(s, random.Random(0), name, knn=v)} for s, v in enumerate(of)]
        study['rows'].append(dict(name=name, config='c.py', on=above, factor='', published={}, runs=runs))
        above = name
    return study


@pytest.fixture
def page(tmp_path):
    def write(study: dict) -> str:
        return write_study_page(study, tmp_path / 'deep' / 'index.html').read_text()

    return write


def text_of(markup: str) -> str:
    return html.unescape(re.sub(r'<[^>]+>', ' ', markup))


def body_of(text: str) -> str:
    """The main table's rows."""
    return re.search(r'class="scroll study">.*?<tbody>(.*?)</tbody>', text, re.DOTALL)[1]


def test_mean_sample_deviation_and_difference_are_the_closed_forms():
    one, two = lines(tiny(a=(70.0, 72.0, 74.0), b=(80.0, 81.0)))
    assert (one.cells[0].value, one.cells[0].spread, one.cells[0].n, one.cells[0].change) == ('72.0', '± 2.0', 3, '')
    # The deviation of 80 and 81 with n - 1 is sqrt(0.5); 80.5 - 72 = 8.5 is more than sqrt(4 + 0.5).
    assert (two.cells[0].value, two.cells[0].spread, two.cells[0].n, two.cells[0].change) == (
        '80.5',
        '± 0.7',
        2,
        '(+8.5)',
    )


def test_a_difference_is_in_parentheses_unless_the_test_says_that_rows_differ():
    study = tiny(a=(70.0, 72.0, 74.0), b=(73.0, 74.0, 75.0))
    assert lines(study)[1].cells[0].change == '(+2.0)'
    study['comparisons'] = {'knn': [dict(row='b', metric='knn', verdict='differs')]}
    assert lines(study)[1].cells[0].change == '+2.0'


def test_verdicts_stand_on_the_page_with_their_intervals(page):
    study = ladder()
    text = page(study)
    assert text.count('class="effects"') == 2 and text.count('aria-label="effects"') == 2
    table = ' '.join(text_of(re.search(r'class="effects">.*?<tbody>(.*?)</tbody>', text, re.DOTALL)[1]).split())
    symmetric = next(c for c in study['comparisons']['knn'] if c['row'].startswith('+ symmetric'))
    low, high = (f'{symmetric[end]:+.1f}'.replace('-', '−') for end in ('low', 'high'))
    assert f'{low} to {high}' in table and ', as blocks' in table
    assert symmetric['verdict'] == 'undecided' and symmetric['seeds'] == 2  # a seed of the row before is missing
    study['rows'][1]['runs'] = study['rows'][1]['runs'][:1]
    assert 'one seed: no verdict' in page(with_verdicts(study))


def test_quantities_about_one_keep_three_decimals_and_negative_ones_a_minus_sign():
    one, two = lines(tiny(a=(-1.52, -1.54), b=(-2.95, -2.95)))
    assert (one.cells[0].value, one.cells[0].spread, two.cells[0].change) == ('−1.530', '± 0.014', '(−1.420)')


def test_what_is_not_printed_stays_blank_and_so_do_differences_to_it():
    found = lines(ladder())
    place = [column.key for column in columns(ladder())].index('in1k')
    cells = {line.name: line.cells[place] for line in found}
    assert (cells['MoCo v2'].value, cells['MoCo v2'].change) == ('67.2', '')
    assert (cells['+ SyncBN'].value, cells['+ SyncBN'].change) == (BLANK, '')
    assert (cells['+ symmetric loss (MoCo v2+)'].value, cells['+ symmetric loss (MoCo v2+)'].change) == ('72.0', BLANK)
    assert (cells['+ complex augmentation'].value, cells['+ complex augmentation'].change) == ('72.4', '+0.4')


def test_measured_less_published_exists_for_the_same_metric_only():
    study = ladder()
    assert [column.kind for column in columns(study)] == ['measured'] * 2 + ['published'] * 8
    study['metrics'] = [dict(key='in1k', label='linear', unit='%')]
    for row in study['rows']:
        row['runs'] = [{**run(s, random.Random(0), 'x', in1k=70.0 + s)} for s in range(3)]
    assert [(c.kind, c.key) for c in columns(study)][:4] == [
        ('measured', 'in1k'), ('published', 'in1k'), ('gap', 'in1k'), ('published', 'voc07_ap50'),
    ]  # fmt: skip
    assert [line.cells[2].value for line in lines(study)][:2] == ['+3.8', BLANK]  # 71.0 - 67.2, and none printed


def test_missing_failed_and_diverged_runs_are_said_and_not_averaged(page):
    study = ladder()
    study['rows'][1]['runs'][0]['scores']['knn'] = math.nan
    del study['rows'][2]['runs'][2]['scores']['logreg']
    study['rows'][4]['runs'] = study['rows'][4]['runs'][:1]
    text = text_of(body_of(page(study)))
    for sentence in (
        'seed 1: has not run', 'seed 2: failed: the loss became nan at step 310', 'seed 0: k-NN, k = 20 is nan',
        'seed 2: logistic regression was not measured', 'seeds 1, 2: has not run',
    ):  # fmt: skip
        assert sentence in ' '.join(text.split()), sentence
    assert [line.cells[0].n for line in lines(study)] == [3, 2, 3, 2, 1, 3, 2]
    assert lines(study)[4].cells[0].spread == '' and 'nan' not in lines(study)[1].cells[0].value


def test_scores_of_a_run_that_did_not_end_do_not_count():
    study = tiny(a=(70.0, 72.0, 99.0))
    study['rows'][0]['runs'][2]['state'] = 'running'
    assert (lines(study)[0].cells[0].value, lines(study)[0].problems) == ('71.0', ('seed 2: is not finished',))


def test_a_study_without_any_run_still_has_its_page(page):
    study = ladder()
    study['metrics'], study['fairness'] = [], {}
    for row in study['rows']:
        row['runs'] = []
    text = page(study)
    assert text.count('seeds 0, 1, 2: has not run') == 7 + 2 * 7  # the table, and its Markdown and LaTeX
    assert '0 of 21' in text and 'No check of it is on record.' in text


@pytest.mark.parametrize('make', [ladder, grouped, drawn_as_lines])
def test_the_page_is_sound_self_contained_and_every_run_is_linked(page, make):
    study = make()
    text = page(study)
    outline = sound(text)
    runs = {f'run-{i}-{j}' for i, row in enumerate(study['rows']) for j in range(len(row['runs']))}
    assert runs == {name for name in outline.ids if re.fullmatch(r'run-\d+-\d+', name)}
    assert runs <= set(re.findall(r'href="#([^"]+)"', body_of(text)))
    outside = [ref for ref in outline.references if not ref.startswith('#')]
    assert outside and all(ref.startswith('./runs/') for ref in outside)


def test_each_run_tells_where_it_came_from(page):
    study = ladder()
    first = study['rows'][0]['runs'][0]
    text = page(study)
    block = re.search(r'<details class="run" id="run-0-0">(.*?)</dl>.*?</details>\s*</details>', text, re.DOTALL)[0]
    for fact in (
        first['sha256'],
        'torch 2.11.0',
        'b34afd9',
        '118.2 s',
        '360,000',
        'randomness.seed: 0',
    ):
        assert fact in block, fact
    assert 'href="./runs/moco_v2/seed_0/epoch_30.pth"' in block and 'href="./runs/moco_v2/seed_0"' in block
    assert text.count('aria-label="instance accuracy, %"') == 7  # a panel a row, with all its seeds


def test_fairness_says_equal_unequal_and_not_checked(page):
    study = ladder()
    study['fairness']['before'][0]['undeclared'] = ['optim_wrapper.lr']
    study['fairness']['after'].append(dict(check='software', equal=True, values={'MoCo v2': 'torch 2.11.0'}))
    text = ' '.join(text_of(page(study)).split())
    assert '✓ equal images seen: 360,000' in text
    assert '✕ unequal code MoCo v2: b34afd9 + SyncBN: b34afd9 with changes' in text
    assert '○ not checked software' in text  # one row is equal to itself, which says nothing
    assert '1 undeclared differences' in text


HOSTILE = '<script>alert(1)</script> & "x" \' $y_1$ 100% #{}~^\\ | _a_ **b** `c` ]]>'


def hostile() -> dict:
    study = copy.deepcopy(ladder())
    study['title'] = study['question'] = study['reading'] = study['scale']['text'] = HOSTILE
    study['metrics'][0]['label'] = study['metrics'][0]['unit'] = study['published_metrics'][0]['label'] = HOSTILE
    for row in study['rows'][1:2]:
        row['name'] = row['factor'] = row['config'] = row['group'] = HOSTILE
        row['runs'][0].update(
            state='failed', error=HOSTILE, folder='//evil.example/<x>"', config_text=HOSTILE, git=HOSTILE
        )
        row['runs'][1].update(folder='javascript:alert(1)', hardware=HOSTILE, versions={HOSTILE: HOSTILE})
    study['fairness']['before'][0].update(row=HOSTILE, found=[HOSTILE], undeclared=[HOSTILE])
    study['fairness']['after'][1]['values'] = {HOSTILE: HOSTILE, 'b': 'c'}
    return study


def test_hostile_names_stay_text_on_the_page(page):
    text = page(hostile())
    outline = sound(text)
    assert '<script>alert' not in text
    assert str(escape(HOSTILE)) in text
    links = [ref for ref in outline.references if not ref.startswith('#')]
    assert all(ref.startswith('./') for ref in links) and './javascript%3Aalert%281%29' in links
    assert './evil.example/%3Cx%3E%22' in links


def test_hostile_names_stay_text_in_markdown():
    table = [line for line in markdown(hostile()).splitlines() if line.startswith('|')]
    bars = {len(re.findall(r'(?<!\\)\|', line)) for line in table}
    assert len(bars) == 1 and len(table) == 2 + 7  # no cell of any row is split
    assert '<script' not in markdown(hostile()) and r'\*\*b\*\* \`c\`' in markdown(hostile())


def test_hostile_names_stay_text_in_latex():
    text = latex(hostile())
    assert r'\$y\_1\$ 100\% \#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}' in text
    depth = 0
    for brace in re.findall(r'(?<!\\)[{}]', text):
        depth += 1 if brace == '{' else -1
        assert depth >= 0
    assert depth == 0
    assert not re.search(r'(?<!\\)[#]', text) and len(re.findall(r'(?<!\\)\$', text)) % 2 == 0
    counts = {len(re.findall(r'(?<!\\)&', line)) for line in body_rows(text)}
    assert counts == {1 + 2 * 10}  # name, factor, and a number and a difference a column


def test_a_row_that_begins_with_a_bracket_is_no_argument_of_the_line_break():
    assert '\n{[}a] & ' in latex(tiny(**{'[a]': (70.0, 71.0)}))


def test_a_row_that_begins_with_a_plus_is_no_list_within_the_list():
    notes = [line for line in markdown(ladder()).splitlines() if line.startswith('- ')]
    assert notes[0] == '- Row + ascending momentum, seed 1: has not run' and len(notes) == 2


def body_rows(text: str) -> list[str]:
    return text[text.index(r'\midrule') : text.index(r'\bottomrule')].splitlines()[1:]


def numbers(text: str) -> list[str]:
    """The decimal numbers in order, whatever is set around them."""
    return re.findall(r'[-+]?\d+\.\d+', text.replace('−', '-'))


@pytest.mark.parametrize('make', [ladder, grouped, drawn_as_lines])
def test_markdown_and_latex_have_the_numbers_of_the_page(page, make):
    study = make()
    on_page = [numbers(text_of(row)) for row in re.findall(r'<tr>(.*?)</tr>', body_of(page(study)), re.DOTALL)]
    in_markdown = [numbers(line) for line in markdown(study).splitlines() if line.startswith('|')][2:]
    in_latex = [numbers(line) for line in body_rows(latex(study))]
    assert in_markdown == on_page == in_latex
    assert all(len(row) >= 4 for row in on_page)


def test_latex_is_booktabs():
    text = latex(ladder())
    for rule in (r'\toprule', r'\midrule', r'\bottomrule', r'\cmidrule(lr){3-6}', r'\cmidrule(lr){7-22}'):
        assert text.count(rule) == 1, rule
    assert r'\multicolumn{4}{c}{measured} & \multicolumn{16}{c}{published}' in text


@pytest.mark.parametrize(('seconds', 'text'), [(90, '90 s'), (3000, '50 min'), (9000, '2.5 h')])
def test_durations_read_as_said(seconds, text):
    assert duration(seconds) == text
