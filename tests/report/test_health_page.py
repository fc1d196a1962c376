"""The health page: states of quantities, charts, independence from other files, and the command that writes the page."""

import json
import re
from pathlib import Path

import pytest
from harness.outline import sound

from mmairl.engine.health import QUANTITIES
from mmairl.report.health_page import write_health_page


def write_scalars(work_dir: Path, *records: dict) -> Path:
    folder = work_dir / '20260101_000000' / 'vis_data'
    folder.mkdir(parents=True)
    folder.joinpath('scalars.json').write_text('\n'.join(map(json.dumps, records)))
    return work_dir


def healthy(step: int, spread: float) -> dict:
    stages = {f'health_gradient_norm_{stage}': 0.001 * 10**step for stage in ('stem', 'layer1', 'projector')}
    return dict(
        step=50 * step, loss=3.0, probe_accuracy=0.1, health_spread_key=spread, health_contrast=0.05, health_positive=0.5,
        health_gradient_norm=0.2 * step, **stages,
    )  # fmt: skip


@pytest.fixture
def work_dir(tmp_path) -> Path:
    return write_scalars(tmp_path / 'run <1>', healthy(1, 0.9), healthy(2, 0.5), healthy(3, 0.02))


def states(text: str) -> dict[str, str]:
    """Return the word on each tile of the page, by the tile's label."""
    tile = r'<i aria-hidden="true">(.)</i> ([\w ]+)</span>\s*([^<]+)<b>'
    tiles = re.findall(tile, text)
    words = {'■': 'bad', '▲': 'watch', '●': 'good', '○': 'no range'}
    assert all(words[shape] == word for shape, word, _ in tiles)
    return {label: word for _, word, label in tiles}


def test_tiles_show_states_worst_first(work_dir, tmp_path):
    text = write_health_page(work_dir, tmp_path / 'page.html').read_text()
    state_of = states(text)
    assert list(state_of.items())[:2] == [('spread of the keys', 'bad'), ('similarity gap to other keys', 'watch')]
    assert state_of['similarity to the positive key'] == 'good' and state_of['loss'] == 'no range'
    assert 'the spread of the keys is 0.02 (its maximum is 1)' in text
    assert 'At iteration 150, 2 of the 4 quantities with a normal range are within it. To check: ' in text
    assert 'To check: spread of the keys (bad), similarity gap to other keys (watch).' in text
    sound(text)
    assert text.count('class="curves') == 6 + 1
    assert 'Health of run &lt;1&gt;' in text and 'run <1>' not in text


def test_every_quantity_has_its_chart(tmp_path):
    run = write_scalars(tmp_path / 'run', dict(step=1, **{f'health_{quantity.name}': 0.5 for quantity in QUANTITIES}))
    text = write_health_page(run, tmp_path / 'page.html').read_text()
    assert text.count('class="curves') == len(QUANTITIES)


def test_page_states_that_the_run_diverged(tmp_path):
    records = [
        dict(
            step=step,
            loss=value,
            health_teacher_distance=value,
            health_gradient_norm_stem=10.0**step,
            health_spread_key=value,
        )
        for step, value in ((1, 0.1), (300, float('nan')))
    ]
    text = write_health_page(write_scalars(tmp_path / 'run', *records), tmp_path / 'page.html').read_text()
    assert states(text) | {'loss': 'bad', 'distance between student and teacher': 'bad'} == states(text)
    # NaN is not valid JSON. With NaN in its data, a browser would draw no chart.
    assert 'NaN' not in ''.join(re.findall('data-chart="([^"]*)"', text))
    assert 'the run has diverged: loss is nan' in text


def test_command_writes_the_page_into_the_work_dir(work_dir, run_tool, capsys):
    run_tool('tools/report.py', 'health', work_dir)
    assert capsys.readouterr().out.splitlines()[-1] == str(work_dir / 'health.html')
    assert (work_dir / 'health.html').is_file()
    with pytest.raises(SystemExit, match='2'):
        run_tool('tools/report.py', work_dir)
    assert 'no results' in capsys.readouterr().err
    with pytest.raises(SystemExit, match='2'):
        run_tool('tools/report.py', 'health', write_scalars(work_dir / 'no hook', dict(step=1, loss=2.0)))
    assert 'logged no health quantities; set default_hooks.health' in capsys.readouterr().err


def test_metrics_of_the_head_have_a_tile(tmp_path):
    record = dict(healthy(1, 0.9), health_head_instance_accuracy=0.25)
    text = write_health_page(write_scalars(tmp_path / 'run', record), tmp_path / 'page.html').read_text()
    assert 'instance accuracy (head)' in text
