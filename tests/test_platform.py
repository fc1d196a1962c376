"""The platform around: mmpretrain beside what else is installed, and checkpoints that mmdet and mmseg read themselves."""

import subprocess
import sys

import pytest
import torch

from mmairl.engine import launch
from mmairl.transfer.ops import use_torchvision_ops


@pytest.mark.parametrize('kind', ['mmdet.ResNet', 'mmseg.ResNet'])
def test_a_training_checkpoint_loads_by_init_cfg(toy_config, kind):
    use_torchvision_ops()
    scope = kind.split('.')[0]
    registry = pytest.importorskip(f'{scope}.registry', reason='the core set-up has no mmdet and mmseg')
    pytest.importorskip(f'{scope}.models')
    runner = launch.train(toy_config(steps=1))
    checkpoint = f'{runner.work_dir}/iter_1.pth'
    init = dict(type='Pretrained', checkpoint=checkpoint, prefix='backbone.')
    backbone = registry.MODELS.build(dict(type=kind, depth=18, init_cfg=init))
    backbone.init_weights()
    ours, theirs = runner.model.backbone.state_dict(), backbone.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_mmpretrain_imports_beside_a_transformers_that_it_does_not_know(tmp_path):
    """A `transformers` of another age must not take ResNet down."""
    info = tmp_path / 'transformers-99.0.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text('Metadata-Version: 2.1\nName: transformers\nVersion: 99.0\n')
    (tmp_path / 'transformers.py').write_text('')
    (tmp_path / 'pycocotools-2.0.dist-info').mkdir()
    (tmp_path / 'pycocotools-2.0.dist-info/METADATA').write_text(
        'Metadata-Version: 2.1\nName: pycocotools\nVersion: 2\n'
    )
    code = f'import sys; sys.path.insert(0, {str(tmp_path)!r}); import mmairl.models; print("fine")'
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=600)
    assert done.stdout.strip().endswith('fine'), done.stderr[-2000:]
