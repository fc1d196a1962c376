"""The series of a chart differ in color, even for color-blind readers, or in their markers."""

import re
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from mmairl.report.charts import chart
from mmairl.report.figures import MARKERS, lines, save_figure, short
from mmairl.report.page import COLORS

# These matrices by Machado, Oliveira and Fernandes (2009) simulate, in linear RGB, eyes that lack one type of cone.
VISION = {
    'normal': np.eye(3),
    'without red': [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    'without green': [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    'without blue': [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}
XYZ_OF_RGB = [
    [0.4124564, 0.3575761, 0.1804375],
    [0.2126729, 0.7151522, 0.072175],
    [0.0193339, 0.119192, 0.9503041],
]
WHITE = [0.95047, 1, 1.08883]


def lab(color: str, vision: object) -> np.ndarray:
    """Return a color as a person with this kind of vision perceives it, in CIELAB."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    visible = np.clip(vision @ linear, 0, 1)
    x, y, z = np.cbrt(XYZ_OF_RGB @ visible / WHITE)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize('vision', VISION)
def test_series_are_distinct_for_color_blind_readers(vision):
    places = [lab(color, np.array(VISION[vision])) for color in COLORS]
    for i, j in combinations(range(len(COLORS)), 2):
        distance = np.linalg.norm(places[i] - places[j])
        if j < 6:
            assert distance > 12, (COLORS[i], COLORS[j])
        if i % len(MARKERS) == j % len(MARKERS):
            assert distance > 18, (COLORS[i], COLORS[j])


def test_equal_figures_have_equal_files(tmp_path):
    for name in ('one', 'two'):
        save_figure(lines({'a': ([1, 2], [3.0, 4.0])}, 'b'), tmp_path / name)
    for kind in ('svg', 'png'):
        one = (tmp_path / f'one.{kind}').read_bytes()
        assert one == (tmp_path / f'two.{kind}').read_bytes()


def test_long_name_stays_on_one_line():
    assert short('a\nb' + 'c' * 100, 10) == 'a bcccccc…'
    assert short('name') == 'name'


@pytest.mark.parametrize(
    'series, options, expected',
    [
        ({'a': ([], []), 'b': ([1], [2.0]), 'c': ([1, 3], [2.0, 4.0])}, {}, ['', 'M0 150h0', 'M0 150L460 0']),
        ({'dots': ([1, 3], [2.0, 4.0])}, dict(dots=True), ['M0 150h0M460 0h0']),
        ({'constant': ([1, 3], [2.0, 2.0])}, {}, ['M0 75L460 75']),
        ({'logarithmic': ([1, 2, 3], [1.0, 10.0, 100.0])}, dict(log='y'), ['M0 150L230 75L460 0']),
    ],
)
def test_still_picture_has_the_paths(series, options, expected):
    assert re.findall(' d="(.*?)"', chart(series, 'title', 'x', **options)) == expected


def test_control_characters_in_names_leave_valid_xml(tmp_path):
    names = ['\x1b[31m', 'a\x00b', '\ud800', '\u202e<b>&']
    save_figure(lines({name: ([0, 1], [number, 1]) for number, name in enumerate(names)}, names[0]), tmp_path / 'a')
    tree = ElementTree.parse(tmp_path / 'a.svg')
    assert all((element.text or '').strip('\n \u200b').isprintable() for element in tree.iter())
