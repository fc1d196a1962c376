"""The index over many studies: newest first, whatever else lies in the folder, and names that mean harm."""

import json
import os

import pytest
from harness.outline import sound
from markupsafe import escape
from test_study_page import HOSTILE, crossed, ladder, text_of, tiny

from mmairl.errors import UserError
from mmairl.study.pages.index_page import write_studies_page
from mmairl.study.pages.study_tables import Column, table_lines


def laid(folder, name: str, content: str, changed: int, page: bool = True) -> None:
    (folder / name).mkdir()
    (folder / name / 'study.json').write_text(content)
    os.utime(folder / name / 'study.json', (changed, changed))
    if page:
        (folder / name / 'page.html').touch()


def test_studies_stand_newest_first_with_what_came_out_of_them(tmp_path):
    old, new = ladder(), {**tiny(a=(70.0, 72.0), b=(73.0, 76.0)), 'title': 'The newer'}
    new['comparisons']['k-nn'][0].update(verdict='differs', estimate=3.5)
    laid(tmp_path, 'old one', json.dumps(old), 1000)
    laid(tmp_path, 'new', json.dumps(new), 2000, page=False)
    for name, content in (('broken', '{"title'), ('foreign', '{"title": "x"}'), ('list', '[1]')):
        laid(tmp_path, name, content, 3000)
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'file.txt').touch()
    page = write_studies_page(tmp_path).read_text()
    assert sound(page).references == ['./old%20one/page.html']
    text = text_of(page[page.index('<main') :])
    assert text.index('The newer (no page.html in new)') < text.index('One factor at a time') < text.index('Not shown')
    assert '2 in ' in text and 'demo 10 of 12 k-NN' in text and 'demo 4 of 4 k-NN' in text
    assert 'b: 74.5 ± 2.1 (n = 2) b: 74.5 ± 2.1 (n = 2) higher: b (+3.5)' in text
    assert 'plus_symmetric_loss: 72.6 ± 0.4 (n = 3) plus_complex_augmentation: ' in text
    for name in ('broken', 'foreign', 'list'):
        assert f'{name}: its study.json is no record of a study' in text
    assert 'empty: no study.json is in it' in text and 'file.txt' not in text
    with pytest.raises(UserError, match='there is no folder'):
        write_studies_page(tmp_path / 'gone')
    with pytest.raises(UserError, match='there is no study in'):
        write_studies_page(tmp_path / 'empty')


def test_a_crossed_study_has_the_verdicts_of_its_factors_and_hostile_names_stay_text(tmp_path):
    study = {**crossed(), 'title': HOSTILE, 'question': HOSTILE}
    study['metrics'][0]['label'] = study['scale']['name'] = HOSTILE
    laid(tmp_path, 'javascript:alert("1")<b>', json.dumps(study), 1000)
    laid(tmp_path, '<i>&', '', 1000)
    page = write_studies_page(tmp_path).read_text()
    said = 'equivalent within ±1: predictor (+0.2); higher: momentum <ascending> (+8.0); differs in how many'
    assert said + ' runs collapse: symmetric loss' in text_of(page)
    assert '<script>alert' not in page and str(escape(HOSTILE)) in page and '&lt;i&gt;&amp;: its' in page
    assert sound(page).references == ['./javascript%3Aalert%28%221%22%29%3Cb%3E/page.html']


def test_study_json_without_end_is_listed(tmp_path):
    for name in ('pipe', 'device', 'sparse', 'large'):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / 'pipe' / 'study.json')
    (tmp_path / 'device' / 'study.json').symlink_to('/dev/zero')
    with (tmp_path / 'sparse' / 'study.json').open('wb') as file:
        file.truncate(2**40)
    study = tiny(a=(70.0,))
    study['rows'][0]['runs'][0]['scores']['k-nn'] = 10**400
    (tmp_path / 'large' / 'study.json').write_text(json.dumps(study))
    text = text_of(write_studies_page(tmp_path).read_text())
    assert 'pipe: its study.json is no record of a study (not-a-regular-file)' in text
    assert 'device: its study.json is no record of a study (not-a-regular-file)' in text
    assert 'sparse: its study.json is no record of a study (file-too-large)' in text
    assert 'large: its study.json is no record of a study (OverflowError)' in text


@pytest.mark.parametrize('rows', [10, 40])
def test_work_is_linear_in_rows(tmp_path, monkeypatch, rows):
    """Each row has ten runs, and all build on the first."""
    calls, numbers = [], Column.numbers
    study = tiny(**{f'row {number}': (70.0,) * 10 for number in range(rows)})
    for row in study['rows'][1:]:
        row['on'] = 'row 0'
    laid(tmp_path, 'study', json.dumps(study), 1000)
    monkeypatch.setattr(Column, 'numbers', lambda column, row: calls.append(row) or numbers(column, row))
    write_studies_page(tmp_path)
    assert len(calls) == rows
    calls.clear()
    assert len(table_lines(study)) == rows and len(calls) == rows
