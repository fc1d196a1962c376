"""`portable` makes checkpoints that torch loads with `weights_only=True`, in a process that does not import mmairl."""

import enum
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

from mmairl.checkpoints.load import load_checkpoint
from mmairl.checkpoints.pickles import portable, write_checkpoint


class Color(str, enum.Enum):
    RED = 'red'


def test_values_become_plain(caplog):
    value = dict(
        number=np.float32(0.5),
        array=np.arange(3),
        words=np.array(['a', 'b']),
        pair=(1, Path('a/b')),
        color=Color.RED,
        colors=[1, Color.RED],
        other=dict(hook=object(), kept=1),
        parameter=torch.nn.Parameter(torch.ones(1)),
    )
    copy = portable(value)
    assert (
        torch.equal(copy.pop('array'), torch.arange(3))
        and type(copy.pop('parameter')) is torch.Tensor
    )
    expected = dict(number=0.5, words=['a', 'b'], pair=(1, None), color='red', colors=[1, 'red'])
    assert copy == {**expected, 'other': dict(hook=None, kept=1)} and type(copy['color']) is str


def test_version_numbers_of_modules_are_kept():
    weights = OrderedDict(a=torch.ones(1))
    weights._metadata = {'': dict(version=np.int64(2))}
    assert portable(dict(w=weights))['w']._metadata == {'': dict(version=2)}


def test_logged_values_return_after_loading(tmp_path):
    hub = dict(
        log_scalars=dict(loss=HistoryBuffer([1.0, 3.0], [1, 1])),
        resumed_keys=dict(loss=True, epoch=True),
    )
    path = tmp_path / 'a.pth'
    write_checkpoint(dict(message_hub=hub, state_dict=dict(w=torch.ones(2))), path)
    code = (
        f"import sys, torch; hub = torch.load('{path}', weights_only=True)['message_hub']; "
        "print(hub['log_scalars']['loss']['values'].tolist()); assert 'mmairl' not in sys.modules"
    )
    command = [sys.executable, '-c', code]
    assert subprocess.check_output(command, text=True).strip() == '[1.0, 3.0]'
    loaded = load_checkpoint(path)
    assert loaded['message_hub']['log_scalars']['loss'].mean() == 2
    assert loaded['message_hub']['resumed_keys'] == dict(loss=True, epoch=True)
