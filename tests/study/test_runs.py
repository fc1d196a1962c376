"""Folders of runs that were set aside."""

from mmairl.study.runs import _any_trial_finished


def test_trial_set_aside_is_no_finished_trial(tmp_path):
    search = tmp_path / 'search_0'
    (search / '0_set_aside_1').mkdir(parents=True)
    (search / '0_set_aside_1' / 'result.json').touch()
    assert not _any_trial_finished(search)
    (search / '1').mkdir()
    (search / '1' / 'result.json').touch()
    assert _any_trial_finished(search)
