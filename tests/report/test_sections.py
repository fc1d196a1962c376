import torch
from outline import sound
from rich.console import Console

from mmairl.evaluation.features import extract
from mmairl.evaluation.protocol import Result, evaluation_sets, extraction
from mmairl.registry import DATASETS
from mmairl.report import sections
from mmairl.report.files import save_table
from mmairl.report.page import Page
from mmairl.report.table import results_table, terminal_table


def test_page_is_sound_and_has_every_figure(cfg, results, work_dir, tmp_path):
    data = [dataset for _, dataset in evaluation_sets(cfg).values()]
    train, test = (extract(None, dataset, extraction(cfg)) for dataset in data)
    page = Page('A <title>', 'A lead.')
    sections.add_results(page, results)
    sections.add_views(page, cfg, seed=0)
    sections.add_maps(page, {'raw pixels': test, 'student': test}, data[1].classes, seed=0)
    sections.add_neighbours(page, (data[0].raw, train), (data[1].raw, test), data[1].classes)
    sections.add_curves(page, work_dir)
    text = page.write(tmp_path / 'page.html').read_text()
    outline = sound(text)
    assert outline.counts['section'] == 5
    assert outline.counts['svg'] == 1 + 2 + 4  # bars, maps, curves
    assert outline.counts['img'] == 8 * 3 + 3 * (1 + 7)  # pairs, neighbours
    assert outline.counts['table'] == 1
    assert 'A &lt;title&gt;' in text and 'trained &lt;student&gt;' in text and '<student>' not in text


def test_views_are_training_views_as_bytes(cfg):
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    first, second = sections.augmented(cfg, dataset, [4, 2])
    assert torch.equal(first, dataset.images[[4, 2]])
    assert torch.equal(second, dataset.images[[4, 2]].flip(-1))


def test_neighbours_are_framed_by_whether_they_are_right(cfg, tmp_path):
    data = [dataset for _, dataset in evaluation_sets(cfg).values()]
    train, test = (extract(None, dataset, extraction(cfg)) for dataset in data)
    wrong = type(train)(train.x, (train.y + 1) % 3)
    for bank, right_frames in ((train, 21), (wrong, 0)):
        page = Page('')
        sections.add_neighbours(page, (data[0].raw, bank), (data[1].raw, test), data[1].classes)
        text = page.write(tmp_path / 'page.html').read_text()
        assert text.count('"picture right"') == right_frames
        assert text.count('"picture wrong"') == 21 - right_frames


def test_a_score_that_a_subject_lacks_is_a_dash_and_the_best_is_marked(results):
    results = [*results, Result('[bold]teacher', {'linear': 99.0}, 0.5)]
    text = str(results_table(results))
    assert '<th scope="row">[bold]teacher</th><td>–</td><td class="best">99.0</td>' in text
    assert text.count('class="best"') == 2
    console = Console(width=100, record=True)
    console.print(terminal_table(results, 'top-1'))
    rows = [line.replace('│', ' ').split() for line in console.export_text().splitlines()]
    assert ['random', 'initialisation', '25.0', '33.3', '1.5'] in rows and ['[bold]teacher', '–', '99.0', '0.5'] in rows


def test_numbers_of_a_table_keep_seven_digits_and_a_name_is_no_formula(tmp_path):
    path = save_table(('a', 'b'), [('=1+1', 1 / 3), ('x', None)], tmp_path / 'table')
    assert path.read_text().splitlines() == ['a,b', "'=1+1,0.3333333", 'x,']
