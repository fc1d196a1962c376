"""Reading checkpoints: what is accepted, what is refused, and that nothing in them runs."""

import os

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer

from mmairl.engine.checkpoint import load_checkpoint
from mmairl.errors import UserError
from mmairl.files import replacing


class RunsACommand:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)


class ReachesFor:
    """Pickles as getattr(owner, name), the way a HistoryBuffer's statistics do."""

    def __init__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner, name

    def __reduce__(self) -> tuple:
        return getattr, (self.owner, self.name)


def test_the_log_history_of_mmengine_is_read_with_weights_only(tmp_path):
    history = HistoryBuffer([1.0, 3.0], [1, 1])
    torch.save(dict(hub=history, scalar=np.float64(0.5), numbers=np.arange(3)), tmp_path / 'a.pth')
    loaded = load_checkpoint(tmp_path / 'a.pth')
    assert loaded['hub'].mean() == 2.0 and loaded['scalar'] == 0.5 and loaded['numbers'].tolist() == [0, 1, 2]


def test_a_checkpoint_that_would_run_code_is_refused_and_runs_nothing(tmp_path):
    proof = tmp_path / 'proof'
    torch.save(dict(state_dict={}, bomb=RunsACommand(f'touch {proof}')), tmp_path / 'a.pth')
    with pytest.raises(UserError, match='asks to run posix.system'):
        load_checkpoint(tmp_path / 'a.pth')
    assert not proof.exists()


@pytest.mark.parametrize('owner,name', [(HistoryBuffer, '__init__'), (torch.Tensor, 'mean'), (np.ndarray, 'tofile')])
def test_the_narrowed_getattr_gives_four_methods_and_nothing_else(tmp_path, owner, name):
    torch.save(dict(bomb=ReachesFor(owner, name)), tmp_path / 'a.pth')
    with pytest.raises(UserError, match='refused|not a checkpoint|truncated'):
        load_checkpoint(tmp_path / 'a.pth')


def test_damaged_and_foreign_files_are_one_sentence(tmp_path):
    good = tmp_path / 'good.pth'
    torch.save(dict(state_dict=dict(a=torch.randn(1000))), good)
    (tmp_path / 'cut.pth').write_bytes(good.read_bytes()[:1500])
    (tmp_path / 'empty.pth').touch()
    (tmp_path / 'text.pth').write_text('not a checkpoint')
    torch.save([1, 2], tmp_path / 'list.pth')
    for name, sentence in dict(
        cut='truncated', empty='empty', text='not a checkpoint', list='holds a list', gone='no checkpoint'
    ).items():
        with pytest.raises(UserError, match=sentence):
            load_checkpoint(tmp_path / f'{name}.pth')


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    target = tmp_path / 'file'
    target.write_text('old')
    with pytest.raises(RuntimeError), replacing(target) as beside:
        beside.write_text('half')
        raise RuntimeError
    assert target.read_text() == 'old' and list(tmp_path.iterdir()) == [target]
    with replacing(target) as beside:
        beside.write_text('new')
    assert target.read_text() == 'new' and list(tmp_path.iterdir()) == [target]
