"""`load_checkpoint` returns the plain content of a file, and never runs code from the file."""

import argparse
import os
from collections import OrderedDict

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from mmengine.logging import HistoryBuffer

from mmairl.checkpoints.load import load_checkpoint, require_same_keys


class Settings:
    """A class that `torch.load(weights_only=True)` does not know."""


class RunsCode:
    def __reduce__(self):
        return os.mkdir, ('executed',)


def test_content_of_real_checkpoints_is_read(tmp_path):
    buffer = HistoryBuffer([1.0, 3.0], [1, 1])
    arrays = [np.arange(6).reshape(2, 3).astype(kind) for kind in ('f4', '>i8', '?', 'f2')]
    weights = OrderedDict(w=torch.eye(2))
    weights._metadata = dict(version=2)
    content = dict(
        state_dict=weights,
        arrays=arrays,
        best=np.float64(0.5),
        log=buffer,
        args=argparse.Namespace(lr=1),
        epoch=3,
    )
    for zipped in (True, False):
        torch.save(content, tmp_path / 'a.pth', _use_new_zipfile_serialization=zipped)
        loaded = load_checkpoint(tmp_path / 'a.pth')
        assert all(map(np.array_equal, loaded['arrays'], arrays))
        assert (loaded['best'], loaded['epoch'], loaded['args']) == (0.5, 3, None)
        assert loaded['log'] is None and loaded['state_dict']._metadata == dict(version=2)


@pytest.mark.parametrize('zipped', [True, False])
def test_code_in_a_file_never_runs(tmp_path, monkeypatch, zipped):
    monkeypatch.chdir(tmp_path)
    for content in (
        dict(a=RunsCode()),
        {'a': RunsCode(), 'pytorch-lightning_version': '2'},
        dict(a=Settings()),
    ):
        torch.save(content, 'a.pth', _use_new_zipfile_serialization=zipped)
        try:
            assert load_checkpoint('a.pth')['a'] is None
        except ValueError as error:
            assert error.code == 'unsafe-checkpoint'
        assert not (tmp_path / 'executed').exists()


def test_settings_of_lightning_are_left_out(tmp_path, warnings):
    content = {
        'pytorch-lightning_version': '2.6',
        'hyper_parameters': dict(of=Settings(), make=Settings, tau=0.9),
    }
    torch.save({**content, 'state_dict': dict(w=torch.ones(1))}, tmp_path / 'a.ckpt')
    assert load_checkpoint(tmp_path / 'a.ckpt')['hyper_parameters'] == dict(
        of=None, make=None, tau=0.9
    )
    assert len(warnings) == 1 and 'Settings' in warnings[0]


def objects(path):
    torch.save(dict(a=np.array([RunsCode()])), path)


def truncated(path):
    torch.save(dict(a=torch.zeros(1000)), path)
    path.write_bytes(path.read_bytes()[:2000])


WRONG = {
    'unsafe-checkpoint': [lambda path: torch.save(dict(a=Settings()), path), objects],
    'damaged-checkpoint': [
        truncated,
        lambda path: path.write_text('text'),
        lambda path: path.write_bytes(b''),
    ],
    'no-dictionary': [lambda path: torch.save([1, 2], path)],
    'no-checkpoint': [lambda path: None],
}


@pytest.mark.parametrize(
    'code, write', [(code, write) for code, writes in WRONG.items() for write in writes]
)
def test_wrong_files_are_one_error(tmp_path, code, write):
    write(tmp_path / 'a.pth')
    with raises_code(code):
        load_checkpoint(tmp_path / 'a.pth')


def test_damaged_safetensors_are_an_error(tmp_path):
    (tmp_path / 'a.safetensors').write_bytes(b'no header')
    with raises_code('damaged-checkpoint'):
        load_checkpoint(tmp_path / 'a.safetensors')


def test_another_network_names_the_first_differing_key():
    network = dict(a=torch.ones(2), b=torch.ones(2))
    require_same_keys(network, network, 'a.pth')
    with raises_code('incomplete-network', match='b is missing'):
        require_same_keys(dict(a=torch.ones(2)), network, 'a.pth')
    for weights, fault in (
        (dict(network, c=torch.ones(1)), 'c is unexpected'),
        (dict(network, b=torch.ones(3)), 'b has'),
    ):
        with raises_code('other-network', match=fault):
            require_same_keys(weights, network, 'a.pth')
