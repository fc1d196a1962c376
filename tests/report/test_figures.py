"""Rows of a chart are told apart by everybody: by colour as the colour-blind see it, or by shape."""

import re
from itertools import combinations

import numpy as np
from matplotlib.colors import to_rgb

from mmairl.report.charts import chart
from mmairl.report.figures import MARKERS, lines, save_figure, short
from mmairl.report.page import COLORS

# Machado, Oliveira and Fernandes 2009, at full severity, for linear RGB.
SEEN = {
    'by most': np.eye(3),
    'without red': [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    'without green': [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    'without blue': [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]


def lab(colour: str, seen: object) -> np.ndarray:
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(XYZ @ np.clip(np.array(seen) @ linear, 0, 1) / np.array([0.95047, 1, 1.08883]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_series_are_distinct_for_color_blind_readers():
    for kind, seen in SEEN.items():
        labs = [lab(colour, seen) for colour in COLORS]
        for i, j in combinations(range(len(COLORS)), 2):
            apart = np.linalg.norm(labs[i] - labs[j])
            assert j >= 6 or apart > 12, (kind, COLORS[i], COLORS[j])
            assert i % len(MARKERS) != j % len(MARKERS) or apart > 18, (kind, COLORS[i], COLORS[j])


def test_equal_figures_have_equal_files(tmp_path):
    for name in ('one', 'two'):
        save_figure(lines({'a': ([1, 2], [3.0, 4.0])}, 'b'), tmp_path / name)
    for kind in ('svg', 'png'):
        assert (tmp_path / f'one.{kind}').read_bytes() == (tmp_path / f'two.{kind}').read_bytes()


def test_long_name_stays_on_one_line():
    assert short('a\nb' + 'c' * 100, 10) == 'a bcccccc…' and short('name') == 'name'


def test_empty_and_single_point_lines_are_drawn():
    paths = re.findall(' d="(.*?)"', chart({'a': ([], []), 'b': ([1], [2.0]), 'c': ([1, 3], [2.0, 4.0])}, 't', 'x'))
    assert paths == ['', 'M0 150h0', 'M0 150L460 0']
    assert re.findall(' d="(.*?)"', chart({'c': ([1, 3], [2.0, 4.0])}, 't', 'x', dots=True)) == ['M0 150h0M460 0h0']
