"""`load_checkpoint` with valid, foreign, hostile and damaged files. Reading a file never runs code from it."""

import argparse
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from harness.backbones import narrow_resnet, with_prefix
from harness.errors import raises_code
from harness.foreign import Runs, Settings
from mmengine.logging import HistoryBuffer

from mmairl.checkpoints.load import load_checkpoint
from mmairl.checkpoints.read import read_backbone
from mmairl.errors import UserError


def refused(path: Path | str, match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        load_checkpoint(path)
    assert '\n' not in str(caught.value)


def test_training_checkpoint_is_read_as_weights_only(tmp_path):
    history, weights = HistoryBuffer([1.0, 3.0], [1, 1]), OrderedDict(a=torch.ones(2))
    weights._metadata = OrderedDict({'': dict(version=1)})
    numbers = [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.ones((2, 3), '>i2')), np.empty((0, 3), '?')]
    torch.save(dict(hub=history, scalar=np.float64(0.5), numbers=numbers, state_dict=weights), tmp_path / 'a.pth')
    loaded = load_checkpoint(tmp_path / 'a.pth')
    assert type(loaded['hub']) is HistoryBuffer and loaded['hub'].mean() == 2.0 and loaded['scalar'] == 0.5
    for number, original in zip(loaded['numbers'], numbers, strict=True):
        assert np.array_equal(number, original) and number.dtype == original.dtype and number.flags.writeable
    assert loaded['state_dict']._metadata == weights._metadata
    with (tmp_path / 'a.pkl').open('wb') as file:
        pickle.dump(dict(numbers=numbers, scalar=np.float32(2)), file, 2)
    loaded = load_checkpoint(tmp_path / 'a.pkl')
    assert loaded['scalar'] == 2 and all(map(np.array_equal, loaded['numbers'], numbers))


@pytest.mark.parametrize('name', ['a.pth', 'a.pkl', 'a'])
def test_options_are_left_out_whatever_the_file_name(tmp_path, name):
    value = dict(args=argparse.Namespace(lr=0.1, of=[argparse.Namespace()]), epoch=3)
    file = tmp_path / name
    for zipped in (True, False):
        torch.save(value, file, _use_new_zipfile_serialization=zipped)
        assert load_checkpoint(file) == dict(args=None, epoch=3)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        file.write_bytes(pickle.dumps(value, protocol))
        assert load_checkpoint(file) == dict(args=None, epoch=3)
    file.write_bytes(pickle.dumps(dict(epoch=4), 0))
    assert load_checkpoint(file) == dict(epoch=4)


def contains_itself() -> dict:
    content: dict = {}
    content['state_dict'] = content
    return content


@pytest.mark.parametrize(
    'make, message',
    [
        (contains_itself, 'it holds an object that contains itself'),
        (lambda: dict(state_dict={torch.ones(1): 1}), 'a dictionary with a Tensor as a key'),
        (lambda: dict(a=torch.zeros(1).expand(2**40)), 'a tensor that is larger than its content'),
        (lambda: dict(a=torch.eye(3).to_sparse()), 'sparse'),
        (lambda: dict(a=torch.empty(3, device='meta')), 'without content'),
        (lambda: [1, 2], 'got a list'),
    ],
)
def test_content_that_is_not_plain_is_an_error(tmp_path, make, message):
    torch.save(make(), tmp_path / 'a.pth')
    refused(tmp_path / 'a.pth', message)


def test_foreign_objects_are_left_out_for_lightning(tmp_path, warnings):
    weights = with_prefix('backbone.', narrow_resnet().state_dict())
    settings = {'pytorch-lightning_version': '2.6.6', 'hyper_parameters': dict(of=Runs(), make=Settings, tau=0.9)}
    torch.save(dict(settings, state_dict=weights), tmp_path / 'a.ckpt')
    assert load_checkpoint(tmp_path / 'a.ckpt')['hyper_parameters'] == dict(of=None, make=None, tau=0.9)
    assert len(warnings) == 1 and 'run_me are left out' in warnings[0]
    torch.save(dict(hyper_parameters=dict(of=Runs()), state_dict=weights), tmp_path / 'b.ckpt')
    refused(tmp_path / 'b.ckpt', 'would run .*run_me')
    torch.save(dict(settings, state_dict={**weights, 'backbone.conv1.weight': Runs()}), tmp_path / 'c.ckpt')
    with raises_code('no-floats', match='backbone.conv1.weight are NoneType'):
        read_backbone(tmp_path / 'c.ckpt')
    assert Settings.built == 0


def test_foreign_or_missing_file_is_an_error(tmp_path):
    (tmp_path / 'text.pth').write_text('not a checkpoint')
    refused(tmp_path / 'text.pth', 'not a checkpoint')
    refused(tmp_path, 'no such file')
    # The second network exists, but has no weights that were trained on ImageNet alone.
    for name in ('torchvision:resnet5', 'torchvision:vit_h_14'):
        refused(name, 'unknown released model')


def test_record_marked_as_a_folder_is_an_error(tmp_path):
    """Without the error, torch would read nothing from the record and return uninitialized weights."""
    torch.save(dict(a=torch.arange(1000.0)), path := tmp_path / 'a.pth')
    with zipfile.ZipFile(path) as archive:
        at = archive.start_dir
        for info in archive.infolist():
            if info.filename.endswith('data/0'):
                break
            at += 46 + len(info.orig_filename) + len(info.extra) + len(info.comment)
    content = bytearray(path.read_bytes())
    # The external attributes, in this byte of the directory entry, mark the record as a folder.
    content[at + 38] = 0x10
    path.write_bytes(content)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    refused(path, 'folder')
