"""The comparison of runs: settings that differ, curves over epochs, images and hours, and final values."""

import json
import re
from html import unescape

import pytest
from harness.outline import charts, sound
from mmengine.config import Config
from test_evaluation_page import leave

from mmairl.config import flat
from mmairl.engine.curves import read_run_config
from mmairl.errors import UserError
from mmairl.report.compare_page import write_compare_page


def leave_run(folder, starts, **config):
    """Write a work dir with a log for each start of the run. `starts` has the logged steps of each start.

    An epoch has four steps, and each step takes an hour.
    """
    for number, steps in enumerate(starts):
        (data := folder / f'2026010{number}_000000' / 'vis_data').mkdir(parents=True)
        rows = [dict(step=s, iter=s, epoch=(s - 1) // 4 + 1, time=3600.0, loss=8.0 / s, extra=1.0) for s in steps]
        (data / 'scalars.json').write_text('\n'.join(map(json.dumps, rows)))
        (data / 'config.py').write_text(''.join(f'{key} = {value!r}\n' for key, value in config.items()))
    return folder


def table(page, number: int) -> list[list[str]]:
    body = re.findall(r'<tbody>(.*?)</tbody>', page.read_text(), re.DOTALL)[number]
    return [
        [unescape(cell) for cell in re.findall(r'<t[hd][^>]*>([^<]*)</t[hd]>', row)]
        for row in re.findall(r'<tr>(.*?)</tr>', body, re.DOTALL)
    ]


@pytest.fixture
def runs(tmp_path):
    shared = dict(optim_wrapper=dict(type='A', clip=1), train_cfg=dict(epochs=2))
    one = leave_run(
        tmp_path / 'x' / 'run', [(2, 4), (6, 8)], total_batch_size=16, randomness=dict(seed=3), work_dir='a', **shared
    )
    two = leave_run(
        tmp_path / 'y' / 'run',
        [(4, 8)],
        total_batch_size=32,
        randomness=dict(seed=4),
        work_dir='b',
        more=[dict(k=1)],
        **shared,
    )
    leave(one, 'knn', 'student', {'k-NN, k = 20': 71.25})
    return one, two


def test_stored_config_is_read_without_running_it(tmp_path):
    cfg = Config(
        dict(a=dict(type='A', betas=(0.9, 0.99)), b=[dict(k=None)], c={'x y': -1.5, 'n': float('inf')}, d='"\'\n')
    )
    (file := tmp_path / '20260101_000000/vis_data/config.py').parent.mkdir(parents=True)
    cfg.dump(file)
    stored, original = flat(read_run_config(tmp_path)), flat(cfg.to_dict())
    assert {key: str(value) for key, value in stored.items()} == {
        key: str(list(value) if isinstance(value, tuple) else value) for key, value in original.items()
    }
    file.write_text(f'a = open({str(tmp_path / "ran")!r}, "w")\nimport os\nb = dict(c=1)\n')
    assert read_run_config(tmp_path)['b'] == dict(c=1) and not (tmp_path / 'ran').exists()


def test_page_lists_differences_and_final_values(runs, tmp_path):
    # A resumed start records the checkpoint from which it continued.
    for start, source in enumerate((None, 'run/iter_4.pth')):
        with open(runs[0] / f'2026010{start}_000000/vis_data/config.py', 'a') as file:
            file.write(f'load_from = {source!r}\n')
    with open(runs[1] / '20260100_000000/vis_data/config.py', 'a') as file:
        file.write('load_from = None\n')
    page = write_compare_page(runs, tmp_path / 'page.html')
    sound(page.read_text())
    assert '\u2068x/run\u2069, \u2068y/run\u2069: 3 settings differ.' in page.read_text()
    assert table(page, 0) == [
        ['more.0.k', '—', '1'], ['randomness.seed', '3', '4'], ['total_batch_size', '16', '32'],
    ]  # fmt: skip
    assert table(page, 1) == [['x/run', '3', '8', '6', '71.25', '1'], ['y/run', '4', '8', 'never', '—', '1']]


def test_scores_of_other_data_have_their_own_columns(runs, tmp_path):
    leave(runs[1], 'knn', 'student', {'k-NN, k = 20': 60.0}, config='configs/evaluation/cifar10_r50.py')
    page = write_compare_page(runs, tmp_path / 'page.html')
    assert [row[4:6] for row in table(page, 1)] == [['71.25', '—'], ['—', '60.00']]
    assert 'k-NN, k = 20, cifar10_r50' in page.read_text() and ', student' not in page.read_text()
    leave(runs[0], 'earlier', 'student of epoch_1', {'k-NN, k = 20': 50.0})
    page = write_compare_page(runs, tmp_path / 'page.html')
    assert {*table(page, 1)[0][4:7]} == {'71.25', '50.00', '—'} and 'k-NN, k = 20, a, student' in page.read_text()


def test_curves_have_epochs_images_and_hours(runs, tmp_path):
    page = write_compare_page(runs, tmp_path / 'page.html').read_text()
    (curves,) = (
        {run['name']: (run['x'], run['y']) for run in one['series']} for one in charts(page) if one['title'] == 'loss'
    )
    values = {'x/run': [4.0, 2.0, 1.33333, 1.0], 'y/run': [2.0, 1.0]}
    steps = {'x/run': [2, 4, 6, 8], 'y/run': [4, 8]}
    batch = {'x/run': 16, 'y/run': 32}
    for name, points in steps.items():
        x, y = curves[name]
        assert y == values[name] and x['epoch'] == [step / 4 for step in points] and x['hours of training'] == points
        assert x['images seen'] == [step * batch[name] for step in points]


@pytest.fixture
def incomparable(runs, tmp_path) -> dict[str, tuple]:
    """Return work dirs that cannot be compared, by the code of the error."""
    (tmp_path / 'no').mkdir()
    other = leave_run(tmp_path / 'other', [()])
    (other / '20260100_000000' / 'vis_data' / 'scalars.json').write_text('{"step": 1, "accuracy": 1.0}')
    unlogged = leave_run(tmp_path / 'begun', [()])
    return {
        'one-run': (runs[0],),
        'listed-twice': (runs[0], runs[0]),
        'nothing-shared': (runs[0], other),
        'empty-log': (runs[0], unlogged),
    }


@pytest.mark.parametrize('code', ['one-run', 'listed-twice', 'nothing-shared', 'empty-log'])
def test_incomparable_runs_raise(incomparable, tmp_path, code):
    with pytest.raises(UserError) as error:
        write_compare_page(incomparable[code], tmp_path / 'page.html')
    assert error.value.code == code


def test_compare_command_prints_the_path(runs, tmp_path, run_tool, capsys):
    run_tool('tools/report.py', 'compare', *runs, '--out', tmp_path / 'page.html')
    assert capsys.readouterr().out.strip() == str(tmp_path / 'page.html')
    command = f'mmairl report compare {runs[0]} {runs[1]} --out {tmp_path}/page.html'
    assert command in unescape((tmp_path / 'page.html').read_text())


def test_batch_that_is_no_number_draws_no_images(runs, tmp_path):
    for run in runs:
        with next(run.glob('*/vis_data/config.py')).open('a') as file:
            file.write("total_batch_size = '²'\n")
    page = write_compare_page(runs, tmp_path / 'page.html').read_text()
    assert all('images seen' not in run['x'] for one in charts(page) for run in one['series'])
