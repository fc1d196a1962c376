"""The page that lists all studies: their order, folders that are not studies, and hostile names."""

import json
import os

import pytest
from harness.outline import sound
from markupsafe import escape
from study.pages.planted import confounded, crossed, tiny
from study.pages.test_study_page import HOSTILE, text_of

from mmairl.errors import UserError
from mmairl.study.pages.index_page import write_studies_page
from mmairl.study.pages.study_tables import Column, table_lines


def lay_down(folder, name: str, content: str, changed: int, page: bool = True) -> None:
    (folder / name).mkdir()
    (folder / name / 'study.json').write_text(content)
    os.utime(folder / name / 'study.json', (changed, changed))
    if page:
        (folder / name / 'page.html').touch()


def main_text(page: str) -> str:
    return text_of(page[page.index('<main') : page.index('</main>')])


def test_studies_are_newest_first_with_answer_and_cost(tmp_path):
    new = {**tiny(a=(70.0, 72.0, 71.0), b=(80.0, 82.0, 81.1)), 'title': 'The newer'}
    lay_down(tmp_path, 'old one', json.dumps(confounded()), 1000)
    lay_down(tmp_path, 'new', json.dumps(new), 2000, page=False)
    page = write_studies_page(tmp_path).read_text()
    assert sound(page).references == ['./old%20one/page.html']
    text = main_text(page)
    assert text.index('The newer') < text.index('One factor at a time')
    assert 'no page.html in new' in text
    assert 'With “b” instead of “a” , k-NN is higher , +10.0 points' in text
    assert '1 higher none 6 of 6 12 min 1970-01-01' in text
    assert '1 confounded, 1 higher, 1 equivalent ✕ 1 20 of 20 40 min' in text


def test_other_folders_are_listed_with_the_reason(tmp_path):
    for name, content in (('broken', '{"title'), ('foreign', '{"title": "x"}'), ('list', '[1]')):
        lay_down(tmp_path, name, content, 3000)
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'file.txt').touch()
    text = main_text(write_studies_page(tmp_path).read_text())
    for name in ('broken', 'foreign', 'list'):
        assert f'{name}: study.json is not the record of a study' in text
    assert 'empty: no study.json' in text
    assert 'file.txt' not in text


@pytest.mark.parametrize('folder, code', [('gone', 'no-folder'), ('empty', 'no-studies')])
def test_folder_without_studies_raises(tmp_path, folder, code):
    (tmp_path / 'empty').mkdir()
    with pytest.raises(UserError) as error:
        write_studies_page(tmp_path / folder)
    assert error.value.code == code


def test_hostile_names_stay_text(tmp_path):
    study = {**crossed(), 'title': HOSTILE, 'question': HOSTILE}
    study['metrics'][0]['label'] = study['scale']['name'] = HOSTILE
    lay_down(tmp_path, 'javascript:alert("1")<b>', json.dumps(study), 1000)
    lay_down(tmp_path, '<i>&', '', 1000)
    page = write_studies_page(tmp_path).read_text()
    assert 'The largest significant effect is that of “momentum <ascending>”' in text_of(page)
    assert '<script>alert' not in page
    assert str(escape(HOSTILE)) in page
    assert '&lt;i&gt;&amp;: study.json' in page
    assert sound(page).references == ['./javascript%3Aalert%28%221%22%29%3Cb%3E/page.html']


def test_unreadable_study_json_is_listed(tmp_path):
    for name in ('pipe', 'device', 'sparse', 'large'):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / 'pipe' / 'study.json')
    (tmp_path / 'device' / 'study.json').symlink_to('/dev/zero')
    with (tmp_path / 'sparse' / 'study.json').open('wb') as file:
        file.truncate(2**40)
    study = tiny(a=(70.0,), b=(71.0,))
    study['rows'][0]['runs'][0]['scores']['k-nn'] = 10**400
    (tmp_path / 'large' / 'study.json').write_text(json.dumps(study))
    text = text_of(write_studies_page(tmp_path).read_text())
    for name, code in (
        ('pipe', 'not-a-regular-file'),
        ('device', 'not-a-regular-file'),
        ('sparse', 'file-too-large'),
        ('large', 'OverflowError'),
    ):
        assert f'{name}: study.json is not the record of a study ({code})' in text


@pytest.mark.parametrize('rows', [10, 40])
def test_table_reads_the_numbers_of_a_row_once(monkeypatch, rows):
    """Each row has ten runs, and all rows build on the first one."""
    calls = []
    numbers = Column.numbers
    study = tiny(**{f'row {number}': (70.0,) * 10 for number in range(rows)})
    for row in study['rows'][1:]:
        row['on'] = 'row 0'
    monkeypatch.setattr(Column, 'numbers', lambda column, row: calls.append(row) or numbers(column, row))
    assert len(table_lines(study)) == rows
    assert len(calls) == rows
