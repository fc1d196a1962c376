"""The page that compares runs."""

from pathlib import Path

from planted import healthy, write_result, write_run

from mmairl.report.compare_page import differences, write_compare_page


def run(tmp_path: Path, name: str, seed: int) -> Path:
    config = dict(randomness=dict(seed=seed), work_dir=name, epochs=3)
    folder = write_run(tmp_path / name, healthy(1, 0.9), healthy(2, 0.8), config=config)
    write_result(folder, 'student', {'k-NN': 70.0 + seed})
    return folder


def test_page_shows_differences_scores_and_curves(tmp_path):
    runs = [run(tmp_path, f'run_{seed}', seed) for seed in (0, 1)]
    text = write_compare_page(runs, tmp_path / 'page.html').read_text()
    assert (
        '1 setting of 2 runs differ' in text
        and 'randomness.seed' in text
        and 'work_dir' not in text
    )
    assert 'k-NN of student on flowers' in text and '71.000' in text
    assert 'alt="spread of the keys, last values: run_0 0.8, run_1 0.8"' in text


def test_missing_setting_differs():
    table = differences({'a': {'x': 1, 'y': dict(z=2)}, 'b': {'x': 1}})
    assert table.rows == [['y.z', '2', None]]
