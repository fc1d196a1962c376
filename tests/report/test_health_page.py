"""The health page of runs."""

import re

import pytest
from harness.errors import raises_code
from planted import healthy, write_run

from mmairl.report.health_page import write_health_page


def text_of(tmp_path, *records: dict) -> str:
    return write_health_page(
        write_run(tmp_path / 'run', *records), tmp_path / 'page.html'
    ).read_text()


def states(text: str) -> dict[str, str]:
    """Return the word on each tile of the page, by the tile's label."""
    tiles = re.findall(r'<i aria-hidden="true">.</i> ([\w ]+)</span>\s*([^<]+)<b>', text)
    return {label: word for word, label in tiles}


def test_tiles_show_states_worst_first(tmp_path):
    text = text_of(tmp_path, healthy(1, 0.9), healthy(11, 0.02))
    found = [*states(text).values()]
    order = ['bad', 'watch', 'good', 'no range']
    assert found == sorted(found, key=order.index) and states(text)['spread of the keys'] == 'bad'
    assert 'quantities with a normal range are within it. To check: spread of the keys' in text
    assert 'first: 0.9 at iteration 50' in text and text.count('class="figure"') >= 5
    assert 'too few iterations' not in text


def test_short_run_is_not_judged_and_names_the_comparison(tmp_path):
    text = text_of(tmp_path, healthy(1, 0.9), healthy(2, 0.9))
    assert 'too few iterations to judge the run' in text and 'random network' in text


def test_accuracy_is_compared_with_the_start(tmp_path):
    text = text_of(
        tmp_path, healthy(1, 0.9, knn_accuracy=20.0), healthy(20, 0.9, knn_accuracy=31.5)
    )
    assert '20.0 at iteration 50, 31.5 now' in text


def test_diverged_run_is_bad(tmp_path):
    text = text_of(tmp_path, healthy(1, 0.9), {**healthy(2, float('nan')), 'loss': float('nan')})
    assert states(text)['loss'] == states(text)['spread of the keys'] == 'bad'
    assert 'the run has diverged: loss is nan' in text


def test_metric_of_the_head_has_a_tile(tmp_path):
    assert 'accuracy (head)' in text_of(tmp_path, healthy(1, 0.9, health_head_accuracy=0.25))


@pytest.mark.parametrize(
    'records, code', [([dict(step=36, loss=2.0)], 'no-health-log'), (None, 'no-curves')]
)
def test_run_without_quantities_is_an_error(tmp_path, records, code):
    folder = write_run(tmp_path / 'run', *records) if records else tmp_path
    with raises_code(code):
        write_health_page(folder, tmp_path / 'page.html')
