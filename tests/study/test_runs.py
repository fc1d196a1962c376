"""Folders of runs: links, logs, locks, and folders that were set aside because their results no longer apply."""

import pytest
from harness.errors import raises_code
from study.small_runs import run_in

from mmairl.io import write_json
from mmairl.study.runs import _any_trial_finished, require_own_files, status


def test_trial_set_aside_is_no_finished_trial(tmp_path):
    search = tmp_path / 'search_0'
    (search / '0_set_aside_1').mkdir(parents=True)
    (search / '0_set_aside_1' / 'result.json').touch()
    assert not _any_trial_finished(search)
    (search / '1').mkdir()
    (search / '1' / 'result.json').touch()
    assert _any_trial_finished(search)


@pytest.mark.parametrize('name', ['failed.txt', 'log.txt', 'asked', 'result.json', ''])
def test_link_out_of_a_study_is_an_error(tmp_path, name):
    private = tmp_path / 'private'
    (private / 'asked').mkdir(parents=True)
    for file in ('failed.txt', 'log.txt', 'result.json', 'config.yaml', 'asked/config.yaml'):
        (private / file).write_text('a password')
    run = run_in(tmp_path / 'study' / 'runs' / 'a' / 'seed_0')
    require_own_files([run], tmp_path / 'study')
    if not name:
        run.folder.rmdir()
    (run.folder / name).symlink_to(private / name)
    with raises_code('link-leads-out'):
        require_own_files([run], tmp_path / 'study')


def test_links_within_or_to_a_study_are_followed(tmp_path):
    run = run_in(tmp_path / 'disk' / 'study' / 'runs' / 'a')
    (run.folder / 'failed_before.txt').write_text('error: before')
    (run.folder / 'failed.txt').symlink_to('failed_before.txt')
    (tmp_path / 'study').symlink_to(tmp_path / 'disk' / 'study')
    require_own_files([run_in(tmp_path / 'study' / 'runs' / 'a')], tmp_path / 'study')


def test_failure_in_another_encoding_is_shown(tmp_path):
    run = run_in(tmp_path / 'a')
    (run.folder / 'failed.txt').write_bytes(b'error: caf\xe9')
    assert status(run) == ('failed', 'error: caf\ufffd')


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
