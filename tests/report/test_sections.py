"""The sections that pages share, on a made-up run: drawn images and their mirror images, two results, curves."""

import json
import re

import pytest
import torch
import torch.nn.functional as F
from mmengine import Config
from outline import sound
from rich.console import Console

from mmairl.evaluation.features import Features, extract
from mmairl.evaluation.protocol import Result, evaluation_sets, extraction
from mmairl.registry import DATASETS, MODELS
from mmairl.report import sections
from mmairl.report.page import Page
from mmairl.report.table import results_table, save_table, terminal_table


@pytest.fixture
def cfg() -> Config:
    train, test = (dict(type='Shapes', split=split, count=96, size=16) for split in ('train', 'val'))
    preprocessor = dict(type='ViewPreprocessor', mean=[0.5] * 3, std=[0.25] * 3)
    mirrored = {**train, 'views': [[], [dict(type='RandomFlip', p=1.0)]]}
    evaluation, loader = dict(train=train, test=test), dict(dataset=mirrored)
    return Config(dict(model=dict(data_preprocessor=preprocessor), train_dataloader=loader, evaluation=evaluation))


@pytest.fixture
def results() -> list[Result]:
    rows = (('raw pixels', 31.2, 40.0), ('random initialisation', 25.04, 33.3), ('trained <student>', 71.9, 80.5))
    return [Result(name, {'k-NN, k = 20': knn, 'linear': linear}, 1.5) for name, knn, linear in rows]


def test_page_is_sound_and_has_every_figure(cfg, results, tmp_path):
    (folder := tmp_path / '20240101_000000' / 'vis_data').mkdir(parents=True)
    logged = [dict(loss=5 / i, instance_accuracy=1 - 1 / i, lr=0.1, momentum=0.99, step=i) for i in range(1, 8)]
    folder.joinpath('scalars.json').write_text('\n'.join(map(json.dumps, logged)))
    data = [dataset for _, dataset in evaluation_sets(cfg).values()]
    train, test = (extract(None, dataset, extraction(cfg)) for dataset in data)
    page = Page('A <title>', 'A lead.')
    sections.add_results(page, results)
    sections.add_views(page, cfg, seed=0)
    sections.add_maps(page, {'raw pixels': test, 'student': test}, data[1].classes, seed=0)
    sections.add_neighbours(page, (data[0].raw, train), (data[1].raw, test), data[1].classes)
    sections.add_curves(page, str(tmp_path))
    text = page.write(tmp_path / 'page.html').read_text()
    outline = sound(text)
    assert outline.counts['section'] == 5
    assert outline.counts['svg'] == 3 * 2 + 2 + 4  # bars, maps, curves
    assert outline.counts['img'] == 8 * 3 + 8 * (1 + 7)  # pairs, neighbours
    assert outline.counts['table'] == 1
    assert 'A &lt;title&gt;' in text and 'trained &lt;student&gt;' in text and '<student>' not in text


def test_views_are_training_views_as_bytes(cfg):
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    images = torch.stack([dataset.raw(4), dataset.raw(2)])
    first, second = sections.augmented(dataset, MODELS.build(cfg.model.data_preprocessor), [4, 2])
    assert torch.equal(first, images) and torch.equal(second, images.flip(-1))


def test_neighbours_are_framed_by_whether_they_are_right(cfg, tmp_path):
    data = DATASETS.build(cfg.evaluation.train)
    perfect = Features(F.one_hot(data.labels).float(), data.labels)
    wrong = Features(perfect.x, (data.labels + 1) % len(data.classes))
    for bank, right in ((perfect, 8 * 7), (wrong, 0)):
        page = Page('')
        query = Features(perfect.x, perfect.y)
        sections.add_neighbours(page, (data.raw, bank), (data.raw, query), data.classes)
        text = page.write(tmp_path / 'page.html').read_text()
        assert text.count('"picture right"') == right and text.count('"picture wrong"') == 8 * 7 - right


def test_a_score_that_a_subject_lacks_is_a_dash_and_the_best_is_marked(results):
    results = [*results, Result('[bold]teacher', {'linear': 99.0}, 0.5)]
    text = str(results_table(results))
    cells = re.search(r'<th scope="row">\[bold\]teacher</th><td>–</td><td class="best">99.0(<svg.*?</svg>)</td>', text)
    assert '<rect width="99.0%"' in cells[1], 'a bar is as long as its number'
    assert text.count('class="best"') == 2
    console = Console(width=100, record=True)
    console.print(terminal_table(results, 'top-1'))
    rows = [line.replace('│', ' ').split() for line in console.export_text().splitlines()]
    assert ['random', 'initialisation', '25.0', '33.3', '1.5'] in rows and ['[bold]teacher', '–', '99.0', '0.5'] in rows


def test_numbers_of_a_table_keep_seven_digits_and_a_name_is_no_formula(tmp_path):
    path = save_table(('a', 'b'), [('=1+1', 1 / 3), ('x', None)], tmp_path / 'table')
    assert path.read_text().splitlines() == ['a,b', "'=1+1,0.3333333", 'x,']
