"""Tables as CSV, Markdown and LaTeX. Untrusted names stay text on one line."""

import pytest

from mmairl.report.page import LATEX, MARKDOWN
from mmairl.report.table import as_csv, as_latex, as_markdown, escaped

HOSTILE = ['\x1b[31mred', 'a\rb\nc', '\u202etxt.exe', 'x\x00y', '\ud800', 'a\x85b', '\x9b2J', 'a\u2028b']


@pytest.mark.parametrize('name', HOSTILE, ids=ascii)
def test_control_characters_are_escaped_in_all_formats(name):
    rows = [(name, '1')]
    for text in (as_csv([name], rows), as_markdown([name, 'b'], rows), as_latex([name, 'b'], rows)):
        assert all(char.isprintable() or char in '\r\n' for char in text)
    for signs in (MARKDOWN, LATEX):
        assert escaped(name, signs).isprintable()


def test_formula_after_a_control_character_stays_text():
    assert as_csv(['a'], [('=1+1',), ('\t=1+1',)]).split() == ['a', "'=1+1", '\\t=1+1']
