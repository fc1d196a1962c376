"""Configs of mmairl work with the runners and tools of OpenMMLab."""

import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmairl.engine import run
from mmairl.engine.checkpoint import load_checkpoint


@pytest.mark.parametrize('before', ['', 'import mmpretrain.utils.dependency;'])
def test_mmpretrain_imports_with_new_transformers(tmp_path, before):
    """An incompatible version of `transformers` must not prevent a ResNet from being built."""
    info = tmp_path / 'transformers-99.0.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text('Metadata-Version: 2.1\nName: transformers\nVersion: 99.0\n')
    (tmp_path / 'transformers.py').write_text('')
    (tmp_path / 'pycocotools-2.0.dist-info').mkdir()
    (tmp_path / 'pycocotools-2.0.dist-info/METADATA').write_text(
        'Metadata-Version: 2.1\nName: pycocotools\nVersion: 2\n'
    )
    code = f'import sys; sys.path.insert(0, {str(tmp_path)!r}); {before} import mmairl.models; print("fine")'
    process = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, timeout=600
    )
    assert process.stdout.strip().endswith('fine'), process.stderr[-2000:]


def test_mmpretrains_script_trains_as_our_tool(toy_config, tmp_path, monkeypatch):
    """mmpretrain's train.py builds the runner that the config names in `runner_type`.

    `custom_imports` registers the toy data.
    """
    script = Path(find_spec('mmpretrain').origin).parent / '.mim/tools/train.py'
    if not script.is_file():
        pytest.skip('mmpretrain is installed without its tools')
    cfg = toy_config(
        steps=2, width=8, work_dir=str(tmp_path / 'theirs'), custom_imports=dict(imports=['mmairl'])
    )
    config = tmp_path / 'run.py'
    cfg.dump(config)
    monkeypatch.setattr(sys, 'argv', ['train.py', str(config)])
    runpy.run_path(str(script), run_name='__main__')
    theirs = load_checkpoint(tmp_path / 'theirs/iter_2.pth')
    assert len(theirs['random_states']) == 1, (
        "the checkpoint has no random states, so mmairl's runner did not write it"
    )
    ours = run.train(toy_config(steps=2, width=8)).model.state_dict()
    assert all(torch.equal(value, theirs['state_dict'][key]) for key, value in ours.items())


def test_network_trains_on_mmpretrains_data(toy_config, tmp_path):
    for number, pixels in enumerate(
        np.random.default_rng(0).integers(0, 256, (16, 40, 40, 3), np.uint8)
    ):
        Image.fromarray(pixels).save(tmp_path / f'{number:02}.png')
    view = [
        dict(type='mmpretrain.RandomResizedCrop', scale=32, backend='pillow'),
        dict(type='mmpretrain.RandomFlip', prob=0.5),
    ]
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(type='mmpretrain.MultiView', num_views=2, transforms=[view]),
        dict(type='mmpretrain.PackInputs'),
    ]
    cfg = toy_config(steps=2, width=8)
    cfg.train_dataloader.dataset = dict(
        type='mmpretrain.CustomDataset',
        data_root=str(tmp_path),
        with_label=False,
        pipeline=pipeline,
    )
    cfg.model.data_preprocessor = dict(
        type='mmpretrain.SelfSupDataPreprocessor',
        mean=[123.7, 116.3, 103.5],
        std=[58.4, 57.1, 57.4],
        to_rgb=True,
    )
    runner = run.train(cfg)
    assert runner.iter == 2
    assert np.isfinite(runner.message_hub.get_scalar('train/loss').current())
