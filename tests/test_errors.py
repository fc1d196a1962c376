"""Errors that users see as one line, and the exit codes of commands."""

import logging
import os
import signal
import time
import traceback
from pathlib import Path

import pytest
from harness.errors import raises_code
from torch.utils.data import DataLoader, Dataset

import mmairl
from mmairl.errors import Diverged, UserError, building, explained, one_sentence_errors
from mmairl.signals import AGAIN, ARGUMENTS, SIGNALS, Listener, prepare, start, stop


class Broken(Dataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        raise UserError('image 0: is broken; remove it', code='broken')


def test_error_of_a_data_worker_is_one_line():
    with pytest.raises(UserError) as caught:
        next(iter(DataLoader(Broken(), num_workers=1)))
    assert str(caught.value) == 'image 0: is broken; remove it'


def test_only_foreign_errors_are_explained():
    with pytest.raises(UserError, match='what .ValueError: a b.; then'), explained('what', 'then'):
        raise ValueError('a\n b')
    for error in (UserError('a', code='b'), Diverged('a'), KeyError('a')):
        with pytest.raises(type(error)) as caught, explained('what', 'then', but=(KeyError,)):
            raise error
        assert caught.value is error
    with pytest.raises(FileNotFoundError), building('Model'):
        Path('/no/such/file').read_text()


@pytest.mark.parametrize('rank, lines', [('0', 1), ('1', 0)])
def test_first_process_prints_the_error(monkeypatch, capsys, rank, lines):
    monkeypatch.setenv('RANK', rank)

    def fail() -> None:
        raise UserError('key: is wrong; correct it')

    def killed(seconds: float) -> None:
        """Stand for the launcher, which ends the other processes while they wait."""
        raise KeyboardInterrupt

    monkeypatch.setattr(time, 'sleep', killed)
    with pytest.raises(SystemExit if lines else KeyboardInterrupt):
        one_sentence_errors(fail)()
    assert capsys.readouterr().err == 'error: key: is wrong; correct it\n' * lines


def test_error_of_the_python_api_has_a_short_traceback(monkeypatch, tmp_path):
    (tmp_path / 'a.pth').write_bytes(b'no checkpoint')
    with raises_code('damaged-checkpoint') as caught:
        mmairl.embed(tmp_path / 'a.pth', tmp_path)
    lines = traceback.format_exception(caught.value)
    assert len(lines) == 4 and str(caught.value) in lines[-1]
    monkeypatch.setenv('MMAIRL_TRACEBACK', '1')
    with raises_code('damaged-checkpoint') as caught:
        mmairl.embed(tmp_path / 'a.pth', tmp_path)
    assert len(traceback.format_exception(caught.value)) > 10


def test_traceback_is_available(monkeypatch):
    monkeypatch.setenv('MMAIRL_TRACEBACK', '1')
    with pytest.raises(ZeroDivisionError):
        one_sentence_errors(lambda: 1 / 0)()
    with pytest.raises(UserError):
        one_sentence_errors(lambda: (_ for _ in ()).throw(UserError('a')))()


def test_commands_hide_a_banner_and_advise_options(caplog, monkeypatch):
    monkeypatch.setitem(ARGUMENTS, 'resume', 'resume=True')
    prepare()
    assert ARGUMENTS['resume'] == '--resume'
    for message in ('Setting accelerator to CPU. If', 'a real problem'):
        logging.getLogger('DeepSpeed').warning(message)
    assert caplog.messages == ['a real problem']


@pytest.mark.parametrize('number', SIGNALS)
def test_signal_ends_a_command_with_code_75(number, capsys):
    def command() -> None:
        os.kill(os.getpid(), number)
        time.sleep(5)

    before = signal.signal(number, signal.SIG_DFL)  # nohup makes the tests ignore SIGHUP
    try:
        handlers = {each: signal.getsignal(each) for each in SIGNALS}
        with pytest.raises(SystemExit) as left:
            one_sentence_errors(command)()
        assert left.value.code == AGAIN
        assert signal.Signals(number).name in capsys.readouterr().err
        assert handlers == {each: signal.getsignal(each) for each in SIGNALS}
    finally:
        signal.signal(number, before)


def test_listener_notes_the_first_signal_and_spares_children():
    listener = Listener()
    try:
        if not (child := os.fork()):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + signal.SIGTERM
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert listener.received == signal.SIGUSR1
    finally:
        listener.close(leaving=False)


def test_stop_gives_processes_time_to_save(tmp_path, monkeypatch):
    monkeypatch.setattr('mmairl.signals.GRACE', 2)
    saves = start(
        [
            'bash',
            '-c',
            f'trap "sleep .2; touch {tmp_path}/saved; exit 75" TERM; while :; do sleep .1; done',
        ]
    )
    hangs = start(['bash', '-c', 'trap "" TERM; while :; do sleep .1; done'])
    time.sleep(0.5)
    stop([saves, hangs])
    assert saves.returncode == AGAIN
    assert (tmp_path / 'saved').exists()
    assert hangs.returncode == -signal.SIGKILL
