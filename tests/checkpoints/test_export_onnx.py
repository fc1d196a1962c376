"""Export to ONNX: onnxruntime computes the same features as torch. Without onnxruntime, the tests are skipped."""

import numpy as np
import pytest
import torch
import torchvision
from harness.errors import raises_code
from mmengine import Config

from mmairl.checkpoints import export_onnx
from mmairl.checkpoints.export_onnx import write_onnx
from mmairl.checkpoints.read import read_backbone
from mmairl.cli import convert


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    network = torchvision.models.resnet18(num_classes=2)
    # A training step moves the batch-norm statistics away from 0 and 1, so a mistake in them would
    # show.
    network(torch.randn(4, 3, 64, 64))
    path = tmp_path_factory.mktemp('onnx') / 'r18.pth'
    torch.save(network.eval().state_dict(), path)
    network.fc = torch.nn.Identity()
    return path, network


@pytest.fixture
def runtime():
    pytest.importorskip('onnxscript', reason='onnxscript is not installed (pip install onnx onnxscript onnxruntime)')
    return pytest.importorskip(
        'onnxruntime', reason='onnxruntime is not installed (pip install onnx onnxscript onnxruntime)'
    )


def test_onnx_features_equal_torch_for_any_batch(checkpoint, runtime, tmp_path):
    path, network = checkpoint
    off = write_onnx(read_backbone(path), tmp_path / 'r18.onnx', size=64)
    session = runtime.InferenceSession(tmp_path / 'r18.onnx')
    metadata = dict(mean='[0.485, 0.456, 0.406]', std='[0.229, 0.224, 0.225]', value_range='[0, 1]')
    metadata |= dict(channels='3', size='64')
    assert session.get_modelmeta().custom_metadata_map.items() >= metadata.items()
    for count in (1, 5):
        images = torch.randn(count, 3, 64, 64)
        (features,) = session.run(['features'], {'images': images.numpy()})
        with torch.no_grad():
            ours = network(images).numpy()
        assert np.abs(features - ours).max() <= 1e-4 * np.abs(ours).max()
    assert 0 <= off <= 1e-4
    assert sorted(file.name for file in tmp_path.iterdir()) == ['r18.onnx']


def test_flags_replace_the_statistics_of_a_config(checkpoint, runtime, tmp_path):
    backbone = dict(type='mmpretrain.ResNet', depth=18, norm_cfg=dict(type='BN'))
    preprocessor = dict(mean=(0.1, 0.1, 0.1), std=(0.2, 0.2, 0.2))
    cfg = Config(dict(model=dict(backbone=backbone, data_preprocessor=preprocessor)))
    cfg.dump(tmp_path / 'config.py')
    out = tmp_path / 'r18.onnx'
    command = [str(checkpoint[0]), str(out), '--to', 'onnx', '--size', '64', '--config', str(tmp_path / 'config.py')]
    for flags, mean in (((), 0.1), (('--mean', *'000', '--std', *'111'), 0.0)):
        convert.main([*command, *flags])
        metadata = runtime.InferenceSession(out).get_modelmeta().custom_metadata_map
        assert metadata['mean'] == str([mean] * 3)


def test_file_with_other_features_is_not_written(checkpoint, runtime, tmp_path, monkeypatch):
    real = export_onnx.pooled
    monkeypatch.setattr(export_onnx, 'pooled', lambda features: real(features) * (1 + torch.rand(1)))
    with raises_code('onnx-difference'):
        write_onnx(read_backbone(checkpoint[0]), tmp_path / 'r18.onnx', size=64)
    assert not list(tmp_path.iterdir())


def test_missing_runtime_is_an_error(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(export_onnx, 'find_spec', lambda name: None)
    with raises_code('missing-onnx'):
        write_onnx(read_backbone(checkpoint[0]), tmp_path / 'r18.onnx')
