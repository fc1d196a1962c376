"""Folders of runs: links, logs, locks, and folders that were set aside because their results no longer apply."""

import pytest
from harness.errors import raises_code
from study.small_runs import run_in

from mmairl.io import write_json
from mmairl.study.runs import _any_trial_finished, status


def test_trial_set_aside_is_no_finished_trial(tmp_path):
    search = tmp_path / 'search_0'
    (search / '0_set_aside_1').mkdir(parents=True)
    (search / '0_set_aside_1' / 'result.json').touch()
    assert not _any_trial_finished(search)
    (search / '1').mkdir()
    (search / '1' / 'result.json').touch()
    assert _any_trial_finished(search)


def test_only_the_end_of_a_long_log_is_read(tmp_path):
    run = run_in(tmp_path / 'a')
    with (run.folder / 'log.txt').open('wb') as log:
        # The file is sparse, so it takes no space on disk.
        log.truncate(2**40)
        log.seek(0, 2)
        log.write(b'first\nlast')
    assert status(run) == ('stopped', 'last')


@pytest.mark.parametrize('curve', [5, [[1]], [[1], ['a']], [[1, 2], [1.0]], None])
def test_result_with_another_curve_is_an_error(tmp_path, curve):
    run = run_in(tmp_path / 'a')
    write_json(run.folder / 'result.json', dict(scores={}, curves={'loss': curve}))
    with raises_code('wrong-content'):
        status(run)


def test_linked_lock_marks_no_run_as_running(tmp_path):
    run = run_in(tmp_path / 'a')
    (tmp_path / 'file').touch()
    (run.folder / '.lock_0').symlink_to(tmp_path / 'file')
    assert not run.is_running
