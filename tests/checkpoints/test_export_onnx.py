"""Export to ONNX: onnxruntime computes the same features as torch for batches of any size."""

import pytest
import torch
from harness.backbones import SIDE, features, resnet
from harness.errors import raises_code

from mmairl.checkpoints import export_onnx
from mmairl.checkpoints.export_onnx import write_onnx
from mmairl.checkpoints.read import read_backbone


def test_onnx_features_equal_torch(tmp_path, monkeypatch):
    pytest.importorskip(
        'onnxscript', reason='onnxscript is not installed (pip install onnx onnxscript onnxruntime)'
    )
    runtime = pytest.importorskip(
        'onnxruntime',
        reason='onnxruntime is not installed (pip install onnx onnxscript onnxruntime)',
    )
    network = resnet()
    torch.save(network.state_dict(), tmp_path / 'a.pth')
    assert write_onnx(read_backbone(tmp_path / 'a.pth'), tmp_path / 'a.onnx', size=SIDE) < 1e-4
    session = runtime.InferenceSession(tmp_path / 'a.onnx')
    images = torch.randn(5, 3, SIDE, SIDE)
    (ours,) = session.run(['features'], {'images': images.numpy()})
    torch.testing.assert_close(
        torch.from_numpy(ours), features(network, images), atol=1e-4, rtol=1e-4
    )
    monkeypatch.setattr(export_onnx, 'TOLERANCE', 0)
    with raises_code('other-features'):
        write_onnx(read_backbone(tmp_path / 'a.pth'), tmp_path / 'b.onnx', size=SIDE)
    assert not (tmp_path / 'b.onnx').exists()
