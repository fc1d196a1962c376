"""Parts of several pages: views as they are shown, nearest neighbors, and tables."""

import re

import torch
import torch.nn.functional as F

from mmairl.evaluation.features import Features
from mmairl.evaluation.protocol import Result
from mmairl.registry import DATASETS, MODELS
from mmairl.report import sections
from mmairl.report.page import Page
from mmairl.report.table import print_results, print_table, results_table, save_table

SHAPES = dict(type='Shapes', split='train', count=96, size=16)


def test_views_are_training_views_as_bytes():
    dataset = DATASETS.build({**SHAPES, 'views': [[], [dict(type='RandomFlip', p=1.0)]]})
    preprocessor = MODELS.build(dict(type='ViewPreprocessor', mean=[0.5] * 3, std=[0.25] * 3))
    images = torch.stack([dataset.raw(4), dataset.raw(2)])
    first, second = sections.augmented(dataset, preprocessor, [4, 2])
    assert torch.equal(first, images) and torch.equal(second, images.flip(-1))


def test_neighbors_are_framed_by_class(tmp_path):
    data = DATASETS.build(SHAPES)
    perfect = Features(F.one_hot(data.labels).float(), data.labels)
    wrong = Features(perfect.x, (data.labels + 1) % len(data.classes))
    for bank, right in ((perfect, 8 * 7), (wrong, 0)):
        page = Page('')
        query = Features(perfect.x, perfect.y)
        sections.add_neighbors(page, (data.raw, bank), (data.raw, query), data.classes)
        text = page.write(tmp_path / 'page.html').read_text()
        assert text.count('"picture right"') == right and text.count('"picture wrong"') == 8 * 7 - right


def test_missing_score_is_a_dash(capsys):
    rows = (('raw pixels', 31.2, 40.0), ('random initialisation', 25.04, 33.3), ('trained <student>', 71.9, 80.5))
    results = [Result(name, {'k-NN, k = 20': knn, 'linear': linear}, 1.5) for name, knn, linear in rows]
    results.append(Result('[bold]teacher', {'linear': 99.0}, 0.5))
    text = str(results_table(results))
    cells = re.search(r'\[bold\]teacher</th>\s*<td>–</td>\s*<td class="best">99.0\s*(<svg.*?</svg>)', text, re.DOTALL)
    assert 'width="99.0%"' in cells[1], 'a bar is as long as its number'
    assert text.count('class="best"') == 2
    print_results(results, 'top-1')
    lines = [line.replace('│', ' ').split() for line in capsys.readouterr().out.splitlines()]
    assert ['random', 'initialisation', '25.0', '33.3', '1.5'] in lines and [
        '[bold]teacher',
        '–',
        '99.0',
        '0.5',
    ] in lines


def test_table_is_a_list_in_a_narrow_terminal(capsys, monkeypatch):
    columns, rows = ['against', 'ours'], [(f'case {i}', ['another library ' * 5, f'{i}.5 ms']) for i in range(2)]
    rows.append(('[/bold] \x1b[2J\nforged', ['', '']))
    monkeypatch.setenv('COLUMNS', '80')
    print_table(columns, rows, 'step')
    lines = capsys.readouterr().out.splitlines()
    assert any('case 1' in line and '1.5 ms' in line for line in lines)
    assert any(r'[/bold] \x1b[2J\nforged' in line for line in lines)
    monkeypatch.setenv('FORCE_COLOR', '1')
    print_table(columns, rows, 'step')
    lines = re.sub(r'\x1b\[[0-9;]*m', '', capsys.readouterr().out).splitlines()
    assert 'case 1' in lines and '  ours: 1.5 ms' in lines and max(map(len, lines)) <= 80


def test_csv_keeps_seven_digits_and_no_formula(tmp_path):
    path = save_table(('a', 'b'), [('=1+1', 1 / 3), ('x', None)], tmp_path / 'table')
    assert path.read_text().splitlines() == ['a,b', "'=1+1,0.3333333", 'x,']
