"""Parts that several pages share: views, nearest neighbors, and tables."""

import re

import pytest
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
    cfg = dict(type='ViewPreprocessor', mean=[0.5] * 3, std=[0.25] * 3)
    first, second = sections.augmented(dataset, MODELS.build(cfg), [4, 2])
    images = torch.stack([dataset.raw(4), dataset.raw(2)])
    assert torch.equal(first, images)
    assert torch.equal(second, images.flip(-1))


@pytest.mark.parametrize('shift, right', [(0, 8 * 7), (1, 0)])
def test_neighbors_are_framed_by_class(tmp_path, shift, right):
    data = DATASETS.build(SHAPES)
    query = Features(F.one_hot(data.labels).float(), data.labels)
    bank = Features(query.x, (data.labels + shift) % len(data.classes))
    page = Page('')
    sections.add_neighbors(page, (data.raw, bank), (data.raw, query), data.classes)
    text = page.write(tmp_path / 'page.html').read_text()
    assert text.count('"picture right"') == right
    assert text.count('"picture wrong"') == 8 * 7 - right


@pytest.fixture
def results() -> list[Result]:
    """Return the results of four networks. The last one has no k-NN accuracy."""
    return [
        Result('raw pixels', {'k-NN, k = 20': 31.2, 'linear': 40.0}, 1.5),
        Result('random weights', {'k-NN, k = 20': 25.04, 'linear': 33.3}, 1.5),
        Result('trained <student>', {'k-NN, k = 20': 71.9, 'linear': 80.5}, 1.5),
        Result('[bold]teacher', {'linear': 99.0}, 0.5),
    ]


def test_missing_score_is_a_dash_on_the_page(results):
    text = str(results_table(results))
    cells = r'\[bold\]teacher</th>\s*<td>–</td>\s*<td class="best">99.0\s*(<svg.*?</svg>)'
    bar = re.search(cells, text, re.DOTALL)[1]
    assert 'width="99.0%"' in bar
    assert text.count('class="best"') == 2


def test_missing_score_is_a_dash_in_the_terminal(results, capsys):
    print_results(results, 'top-1')
    lines = [line.replace('│', ' ').split() for line in capsys.readouterr().out.splitlines()]
    assert ['random', 'weights', '25.0', '33.3', '1.5'] in lines
    assert ['[bold]teacher', '–', '99.0', '0.5'] in lines


COLUMNS = ['against', 'ours']
ROWS = [
    ('case 0', ['another library ' * 5, '0.5 ms']),
    ('case 1', ['another library ' * 5, '1.5 ms']),
    ('[/bold] \x1b[2J\nforged', ['', '']),
]


def test_piped_table_has_its_full_width(capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '80')
    print_table(COLUMNS, ROWS, 'step')
    lines = capsys.readouterr().out.splitlines()
    assert any('case 1' in line and '1.5 ms' in line for line in lines)
    assert any(r'[/bold] \x1b[2J\nforged' in line for line in lines)


def test_table_is_a_list_in_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '80')
    monkeypatch.setenv('FORCE_COLOR', '1')
    print_table(COLUMNS, ROWS, 'step')
    lines = re.sub(r'\x1b\[[0-9;]*m', '', capsys.readouterr().out).splitlines()
    assert {'case 1', '  ours: 1.5 ms'} <= {*lines}
    assert max(map(len, lines)) <= 80


def test_csv_keeps_seven_digits_and_no_formula(tmp_path):
    path = save_table(('a', 'b'), [('=1+1', 1 / 3), ('x', None)], tmp_path / 'table')
    assert path.read_text().splitlines() == ['a,b', "'=1+1,0.3333333", 'x,']
