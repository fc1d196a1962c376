"""Our configs in the platform's own runner and tools: what trains there, and what is lost with a sentence."""

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from mmengine.runner import Runner

from mmairl.engine.checkpoint import load_checkpoint
from mmairl.engine.launch import register
from mmairl.errors import UserError


def test_a_config_of_ours_trains_and_saves_in_mmengines_own_runner(toy_config, caplog):
    cfg = toy_config(steps=2, batch=8, **{'train_dataloader.batch_size': 8})
    register()
    runner = Runner.from_cfg(cfg)
    runner.train()
    saved = load_checkpoint(Path(cfg.work_dir) / 'iter_2.pth')
    assert saved['state_dict'].keys() == runner.model.state_dict().keys()
    assert 'to resume exactly, set runner_type' in next(Path(cfg.work_dir).glob('*/*.log')).read_text()
    options = {'train_dataloader.batch_size': 8, 'train_dataloader.dataset.count': 16}  # the same 16 images
    again = toy_config(steps=3, batch=8, resume=True, load_from=f'{cfg.work_dir}/iter_2.pth', **options)
    runner = Runner.from_cfg(again)
    runner.train()
    assert runner.iter == 3


def test_a_batch_that_mmengines_runner_would_take_for_one_is_one_sentence(toy_config):
    with pytest.raises(UserError, match='takes one image a step where train_dataloader.batch_size is not set'):
        Runner.from_cfg(toy_config(steps=2)).train()


def test_mmpretrains_own_script_trains_a_config_of_ours_as_our_tool_does(toy_config, tmp_path, monkeypatch):
    """Its train.py builds the `runner_type` of the config, after `custom_imports` has made the toy data known."""
    from mmairl.engine import launch

    script = Path(find_spec('mmpretrain').origin).parent / '.mim/tools/train.py'
    if not script.is_file():
        pytest.skip('mmpretrain is installed without its tools')
    options = dict(steps=2, work_dir=str(tmp_path / 'theirs'))
    cfg = toy_config(**options, custom_imports=dict(imports=['mmairl']))
    config = tmp_path / 'run.py'
    cfg.dump(config)
    monkeypatch.setattr(sys, 'argv', ['train.py', str(config)])
    runpy.run_path(str(script), run_name='__main__')
    theirs = load_checkpoint(tmp_path / 'theirs/iter_2.pth')
    assert len(theirs['random_states']) == 1, 'our runner: it resumes exactly'
    ours = launch.train(toy_config(steps=2)).model.state_dict()
    assert all(torch.equal(value, theirs['state_dict'][key]) for key, value in ours.items())
