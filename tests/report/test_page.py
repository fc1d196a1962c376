"""Pages and figures."""

import base64
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from scipy import stats

from mmairl.report.figures import chart, fitted, heat_map, lines, save_figure
from mmairl.report.page import Page

HOSTILE = '<script>alert(1)</script>"\'{{ 7 * 7 }}'


def test_page_escapes_text_and_forbids_scripts_and_requests(tmp_path):
    page = Page(HOSTILE, HOSTILE).add(HOSTILE, HOSTILE, HOSTILE, HOSTILE, folded=True)
    text = page.write(tmp_path / 'page.html').read_text()
    assert '<script' not in text and '49' not in re.sub('<style>.*</style>', '', text, flags=re.S)
    assert "default-src 'none'; img-src data:; style-src 'sha256-" in text
    assert not re.search(r'(src|href)="(?!data:)', text)


def test_chart_is_an_image_with_a_text_for_screen_readers():
    image = chart({'a_$x$': ([0, 10], [1.5, float('nan')]), '_b': ([0, 10], [2, 3])}, 'loss', 'step', log='y')
    assert 'alt="loss by step. a_$x$: 1.5 at 0, 1.5 at 0; _b: 2 at 0, 3 at 10"' in image
    svg = base64.b64decode(re.search('base64,([^"]+)', image)[1]).decode()
    texts = [element.text for element in ET.fromstring(svg).iter() if element.text]
    assert {'loss', 'step', '\u200ba_$x$', '\u200b_b'} <= set(texts)


def test_equal_figures_give_equal_files(tmp_path):
    for name in ('a', 'b'):
        save_figure(lines({'x': ([1, 2], [3, 4])}, 'title', ticks=['one', 'two']), tmp_path / name)
    for kind in ('svg', 'pdf', 'png'):
        assert (tmp_path / f'a.{kind}').read_bytes() == (tmp_path / f'b.{kind}').read_bytes()


def test_heat_map_shows_each_number(tmp_path):
    save_figure(heat_map(np.array([[0.25, 1.0]]), ['r'], ['c', 'd'], 'CKA'), tmp_path / 'a', ['svg'])
    assert all(text in (tmp_path / 'a.svg').read_text() for text in ('0.25', '1.00', 'CKA'))


def test_line_and_band_equal_linear_regression():
    x, y = np.array([1.0, 2, 4, 7]), np.array([2.0, 3, 9, 11])
    along, middle, reach = fitted([*zip(x, y)])
    fit = stats.linregress(x, y)
    np.testing.assert_allclose(middle, fit.intercept + fit.slope * along)
    residual = np.sqrt(((y - fit.intercept - fit.slope * x) ** 2).sum() / 2)
    error = residual * np.sqrt(1 / 4 + (along - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum())
    np.testing.assert_allclose(reach, stats.t.ppf(0.975, 2) * error)


@pytest.mark.parametrize('points', [[(1, 2), (2, 3)], [(1, 2), (1, 3), (1, 4)]])
def test_too_few_points_have_no_line(points):
    assert fitted(points) is None
