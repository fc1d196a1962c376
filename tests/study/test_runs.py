"""Folders of runs that are set aside."""

from mmairl.study.runs import _any_trial_finished
from mmairl.study.schema import REQUEST_AND_LOGS, set_aside


def test_set_aside_takes_the_first_free_folder(tmp_path):
    run = tmp_path / 'seed_0'
    for number in (1, 2):
        run.mkdir()
        (run / 'weights.pth').touch()
        assert set_aside(run) == tmp_path / f'seed_0_set_aside_{number}'
    assert not run.exists()


def test_set_aside_keeps_the_request_and_logs(tmp_path):
    run = tmp_path / 'seed_0'
    (run / 'asked').mkdir(parents=True)
    for name in ('asked.json', 'log.txt', '.lock_0', 'weights.pth', 'chosen.json'):
        (run / name).touch()
    moved = set_aside(run, keep=REQUEST_AND_LOGS, last='chosen.json')
    assert {path.name for path in moved.iterdir()} == {'weights.pth', 'chosen.json'}
    assert {path.name for path in run.iterdir()} == {'asked', 'asked.json', 'log.txt', '.lock_0'}


def test_trial_set_aside_is_no_finished_trial(tmp_path):
    search = tmp_path / 'search_0'
    (search / '0_set_aside_1').mkdir(parents=True)
    (search / '0_set_aside_1' / 'result.json').touch()
    assert not _any_trial_finished(search)
    (search / '1').mkdir()
    (search / '1' / 'result.json').touch()
    assert _any_trial_finished(search)
