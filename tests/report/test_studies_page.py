"""The index over many studies: newest first, whatever else lies in the folder, and names that mean harm."""

import json
import os

import pytest
from markupsafe import escape
from outline import sound
from test_study_page import HOSTILE, crossed, ladder, text_of, tiny

from mmairl.errors import UserError
from mmairl.report.studies_page import write_studies_page


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
    assert 'b: 74.5 ± 2.1 (n = 2) b: 74.5 ± 2.1 (n = 2) differs: b (+3.5)' in text
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
    said = 'equivalent within ±1: predictor (+0.2); differs: momentum <ascending> (+8.0); differs in how many'
    assert said + ' runs collapse: symmetric loss' in text_of(page)
    assert '<script>alert' not in page and str(escape(HOSTILE)) in page and '&lt;i&gt;&amp;: its' in page
    assert sound(page).references == ['./javascript%3Aalert%28%221%22%29%3Cb%3E/page.html']
