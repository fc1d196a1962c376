"""What a process must be told before it can join the others."""

import pytest

from mmairl.engine.distributed import TOLD, start_processes
from mmairl.errors import UserError


@pytest.mark.parametrize('launcher,script', [('pytorch', 'tools/dist_train.sh'), ('slurm', 'tools/slurm_train.sh')])
def test_a_launcher_that_was_named_and_did_not_start_the_process_is_one_sentence(monkeypatch, launcher, script):
    for name in TOLD[launcher]:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=f'--launcher {launcher} wants .* in the environment; start with {script}'):
        start_processes(launcher)


def test_slurm_without_its_tools_is_one_sentence(monkeypatch, tmp_path):
    for name in TOLD['slurm']:
        monkeypatch.setenv(name, '0')
    for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_PORT'):
        monkeypatch.setenv(name, '0')  # so that what is set meanwhile is taken back
    monkeypatch.delenv('MASTER_ADDR', raising=False)
    monkeypatch.setenv('PATH', str(tmp_path))
    with pytest.raises(UserError, match='scontrol, .* is not on the PATH; set MASTER_ADDR'):
        start_processes('slurm')


def test_one_process_needs_to_be_told_nothing(monkeypatch):
    for name in TOLD['pytorch']:
        monkeypatch.delenv(name, raising=False)
    start_processes('none')
