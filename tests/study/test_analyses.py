"""Test analyses that a study lists: each adds a part to study.json and a section to the study's page."""

import sys

import pytest
from harness.errors import raises_code
from markupsafe import Markup
from study.pages.planted import ladder
from study.test_spec import written

from mmairl.study.analyses import ANALYSES, Analysis, analysis_records
from mmairl.study.pages.study_page import write_study_page
from mmairl.study.spec import read_study

MODULE = """
from mmairl.study.analyses import ANALYSES, Analysis
ANALYSES[__name__] = Analysis('rows', lambda study, configs, runs: len(study.rows), lambda study: f'{study["rows"]} rows')
"""


def test_study_loads_its_modules(tmp_path, monkeypatch):
    (tmp_path / 'count_rows.py').write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    study = read_study(written(tmp_path, analyses=['count_rows']))
    try:
        assert analysis_records(study, {}, []) == {'rows': 2}
    finally:
        del ANALYSES['count_rows'], sys.modules['count_rows']


@pytest.mark.parametrize('module, code', [('projects.nowhere', 'no-analysis-module'), ('json', 'no-analysis')])
def test_module_without_analysis_is_an_error(tmp_path, module, code):
    with raises_code(code):
        read_study(written(tmp_path, analyses=[module]))


def test_page_has_the_sections_of_its_analyses(tmp_path, monkeypatch):
    section = Analysis('counted', None, lambda study: Markup(f'<section>{study["counted"]} counted</section>'))
    monkeypatch.setitem(ANALYSES, 'here', section)
    page = write_study_page({**ladder(), 'analyses': ['here'], 'counted': 3}, tmp_path / 'page.html')
    assert '<section>3 counted</section>' in page.read_text()


def test_page_imports_no_module_from_its_data(tmp_path, monkeypatch):
    (tmp_path / 'from_data.py').write_text('raise SystemExit')
    monkeypatch.syspath_prepend(str(tmp_path))
    write_study_page({**ladder(), 'analyses': ['from_data'], 'counted': 3}, tmp_path / 'page.html')
