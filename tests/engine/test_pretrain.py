"""A line of Python: which config it trains by, and that it can be called in a notebook."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mmairl
from mmairl.configs import load_config
from mmairl.engine.check import check_config
from mmairl.engine.checkpoint import settings
from mmairl.engine.pretrain import config_for
from mmairl.errors import UserError
from mmairl.weights.read import load_checkpoint

NARROW = {
    'model.backbone.stem_channels': 8,
    'model.backbone.base_channels': 8,
    'model.projector.in_channels': 64,
    'model.projector.hidden_channels': 32,
    'model.predictor.hidden_channels': 32,
}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / 'images'
    folder.mkdir()
    for number, pixels in enumerate(np.random.default_rng(1).integers(0, 256, (72, 40, 40, 3), np.uint8)):
        Image.fromarray(pixels).save(folder / f'{number:02}.png')
    return folder


def test_on_a_large_folder_the_config_is_the_one_that_comes_for_folders():
    written = settings(load_config('mmairl::mocov2plus_r18_folder_100e.py'))
    made = settings(config_for('mocov2plus', 'data/images', 200_000, epochs=100))
    assert (
        made.pop('train_dataloader.persistent_workers') == 'False' != written.pop('train_dataloader.persistent_workers')
    )
    assert made == written


@pytest.mark.parametrize('method', ['mocov1', 'mocov2', 'mocov2plus', 'smocov2plus', 'byol', 'byol_lars'])
@pytest.mark.parametrize('images', [64, 1000, 30_000])
def test_each_frameworks_config_suits_the_number_of_images(method, images):
    cfg, full = config_for(method, 'x', images, epochs=30), load_config(f'mmairl::{method}_r50_200e.py')
    check_config(cfg)
    batch = cfg.total_batch_size
    assert batch == {64: 16, 1000: 32, 30_000: 256}[images]
    if queue := cfg.model.get('queue'):
        assert batch <= queue.length <= images / 4
    assert cfg.optim_wrapper.optimizer.lr / batch == full.optim_wrapper.optimizer.lr / full.total_batch_size
    steps, momentum = images // batch * 30, cfg.default_hooks.momentum.base
    assert 0.9 <= momentum <= full.default_hooks.momentum.base
    assert momentum == 0.9 or 1 / (1 - momentum) <= steps / 50 + 1e-6, 'a fiftieth of the run, in steps'
    assert cfg.param_scheduler[0].end == cfg.param_scheduler[1].begin == 3


def test_it_runs_twice_in_one_process_leaves_no_worker_and_goes_on(images, tmp_path):
    how = dict(size=32, batch=32, workers=1, seed=4)
    first, second = (
        mmairl.pretrain('mocov2plus', images, tmp_path / name, 1, options=NARROW, **how) for name in ('a', 'b')
    )
    assert (first.name, second.parent) == ('epoch_1.pth', tmp_path / 'b')
    assert not multiprocessing.active_children()
    one, other = (load_checkpoint(path)['state_dict'] for path in (first, second))
    assert all(torch.equal(value, other[key]) for key, value in one.items())
    by_command, trained = (
        load_config(tmp_path / 'b/mocov2plus_r50_200e.py'),
        load_checkpoint(second)['meta']['settings'],
    )
    views = 'train_dataloader.dataset.views'  # whose keys are sorted in the file
    assert {**settings(by_command), views: trained[views]} == trained, 'the commands go on from the config there'
    last = mmairl.pretrain('mocov2plus', images, tmp_path / 'b', 2, options=NARROW, resume=True, **how)
    assert last.name == 'epoch_2.pth' and load_checkpoint(last)['meta']['iter'] == 4


def test_bad_input_is_a_user_error_of_one_sentence(images, tmp_path):
    def said(*given, **how) -> str:
        with pytest.raises(UserError) as caught:
            mmairl.pretrain(*given, out=tmp_path / 'out', size=32, **how)
        return str(caught.value)

    assert "did you mean 'mocov2plus'" in said('moco_v2plus', images)
    assert 'there is no folder of images at' in said('byol', tmp_path / 'none')
    assert "the config has no 'modell'; did you mean 'model'" in said('byol', images, options={'modell.x': 1})
    assert 'fewer than one batch of 100' in said('byol', images, batch=100, options=NARROW)
    for number in range(20):
        (images / f'{number:02}.png').unlink()
    assert 'holds 52 images, too few to learn from' in said('byol', images)


def test_a_data_workers_sentence_is_the_error(images, tmp_path):
    for number in range(72):
        (images / f'{number:02}.png').write_bytes(b'no image')
    with pytest.raises(UserError, match=r'^11 of the 72 training images cannot be read'):
        mmairl.pretrain('mocov2plus', images, tmp_path / 'out', 1, size=32, workers=1, options=NARROW)
    assert not multiprocessing.active_children()


def test_to_import_the_package_imports_neither_of_the_two():
    code = "import sys, mmairl; print([m for m in sys.modules if m.startswith(('mmairl.engine', 'mmairl.evaluation'))])"
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout == '[]\n'
    with pytest.raises(AttributeError, match="no attribute 'pretain'"):
        mmairl.pretain  # noqa: B018
