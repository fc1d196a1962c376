"""The figure of effects: its axis, its texts, and its files for papers."""

import pytest

from mmairl.report.effects import LOOKS, Effect, EffectsFigure, draw_effects, effect_files
from mmairl.report.table import as_csv, as_latex, as_markdown


def figure(*effects: Effect, **changes) -> EffectsFigure:
    return EffectsFigure('Effects', effects, 1.0, 'k-NN', **changes)


SYMMETRIC = Effect('+ symmetric loss', 'higher', 'differs', 8.2, 7.0, 9.4, (7.1, 9.3), published=0.4)
COLLAPSED = Effect('BYOL', 'not tested (collapsed runs)', 'problem')


def test_axis_covers_seeds_margin_and_published():
    ticks = figure(SYMMETRIC).ticks
    assert ticks[0] <= -1.0
    assert ticks[-1] >= 9.4
    assert 0.0 in ticks


@pytest.mark.parametrize('value, place', [(-2.0, 0.0), (4.0, 50.0), (10.0, 100.0)])
def test_place_is_a_percentage_of_the_axis(value, place):
    figure_data = figure(SYMMETRIC)
    assert (figure_data.ticks[0], figure_data.ticks[-1]) == (-2.0, 10.0)
    assert figure_data.place(value) == place


def test_unknown_effect_has_no_numbers():
    assert (COLLAPSED.size, COLLAPSED.range, COLLAPSED.numbers) == ('—', '', [])


def test_numbers_around_one_keep_three_decimals():
    effect = Effect('a', 'higher', 'differs', 0.0123, 0.01, 0.02, digits=3)
    assert (effect.size, effect.range) == ('+0.012', '+0.010 to +0.020')


def test_files_have_a_table_of_the_numbers():
    files = effect_files(figure(SYMMETRIC, COLLAPSED, published='linear'))
    assert set(files) == {'svg', 'pdf', 'png', 'tex', 'md', 'csv'}
    assert files['csv'].decode().splitlines() == [
        'effect,k-NN,95 % low,95 % high,verdict,published: linear',
        "'+ symmetric loss,8.2,7.0,9.4,higher,0.4",
        'BYOL,—,—,—,not tested (collapsed runs),—',
    ]


@pytest.mark.parametrize('width, inches', [('column', 3.35), ('text', 6.9)])
def test_figure_has_the_width_of_a_paper(width, inches):
    assert draw_effects(figure(SYMMETRIC), width).get_figwidth() == inches


def test_kinds_differ_without_color():
    looks = {(marker, face == 'white') for marker, _, face in LOOKS.values()}
    assert len(looks) == len(LOOKS)


def test_tables_escape_markup():
    rows = [['a_b & |', '50 %']]
    assert 'a\\_b \\& ' in as_latex(['x', 'y'], rows)
    assert 'a\\_b &amp; \\|' in as_markdown(['x', 'y'], rows)
    assert as_csv(['x', 'y'], [['=1+1', '−3.5']]).splitlines()[1] == "'=1+1,-3.5"
