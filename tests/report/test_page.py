"""Pages and figures."""

import base64
import re
import xml.etree.ElementTree as ET

from mmairl.report.figures import chart, lines, save_figure
from mmairl.report.page import Page

HOSTILE = '<script>alert(1)</script>"\'{{ 7 * 7 }}'


def test_page_escapes_text_and_forbids_scripts_and_requests(tmp_path):
    page = Page(HOSTILE, HOSTILE).add(HOSTILE, HOSTILE, HOSTILE, HOSTILE, folded=True)
    text = page.write(tmp_path / 'page.html').read_text()
    assert '<script' not in text and '49' not in re.sub('<style>.*</style>', '', text, flags=re.S)
    assert "default-src 'none'; img-src data:; style-src 'sha256-" in text
    assert not re.search(r'(src|href)="(?!data:)', text)


def test_chart_is_an_image_with_a_text_for_screen_readers():
    image = chart(
        {'a_$x$': ([0, 10], [1.5, 1.25]), '_b': ([0, 10], [2, 3])}, 'loss', 'step', log='y'
    )
    assert 'alt="loss, last values: a_$x$ 1.25, _b 3"' in image
    svg = base64.b64decode(re.search('base64,([^"]+)', image)[1]).decode()
    texts = [element.text for element in ET.fromstring(svg).iter() if element.text]
    assert {'loss', 'step', '\u200ba_$x$', '\u200b_b'} <= set(texts)


def test_equal_figures_give_equal_files(tmp_path):
    for name in ('a', 'b'):
        save_figure(lines({'x': ([1, 2], [3, 4])}, 'title', ticks=['one', 'two']), tmp_path / name)
    for kind in ('svg', 'pdf', 'png'):
        assert (tmp_path / f'a.{kind}').read_bytes() == (tmp_path / f'b.{kind}').read_bytes()
