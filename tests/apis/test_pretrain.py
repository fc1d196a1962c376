"""A line of Python: which config it trains by, and that it can be called in a notebook."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from harness.toy import NARROW
from PIL import Image

import mmairl
from mmairl.apis.suggest import config_for, suggest
from mmairl.checkpoints.read import load_checkpoint, read_backbone
from mmairl.config import load_config
from mmairl.engine.checkpoint import settings
from mmairl.errors import UserError


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / 'images'
    folder.mkdir()
    for number, pixels in enumerate(np.random.default_rng(1).integers(0, 256, (72, 40, 40, 3), np.uint8)):
        Image.fromarray(pixels).save(folder / f'{number:02}.png')
    return folder


def test_on_a_large_folder_the_config_is_the_one_that_comes_for_folders():
    written = settings(load_config('mmairl::mocov2plus_r18_folder_100e.py'))
    made = settings(config_for('mocov2plus', 200_000, 'data/images', epochs=100, workers=8))
    assert made == written


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


def test_stop_without_labels_names_the_project(images, tmp_path):
    with pytest.raises(UserError) as error:
        mmairl.pretrain('mocov2plus', images, tmp_path / 'off', 2, stop='label-free')
    assert error.value.code == 'label-free-moved' and not (tmp_path / 'off').is_dir()


@pytest.mark.parametrize('in_notebook', [True, False])
def test_a_cell_of_a_notebook_prints_what_a_run_uses_and_what_is_wrong_and_no_log(images, tmp_path, capfd, in_notebook):
    code = (
        'class ZMQInteractiveShell: config = {}\nimport builtins\nbuiltins.get_ipython = ZMQInteractiveShell\n'
        * in_notebook
    )
    code += (
        f'import warnings, mmairl\nwarnings.simplefilter("ignore")\nwhere = {str(images)!r}, {str(tmp_path / "run")!r}'
    )
    code += f"\nmmairl.pretrain('mocov2plus', *where, 1, size=32, batch=32, workers=0, options={NARROW!r})"
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert any('1 x cpu, each with' in line for line in lines) and (len(lines) < 6) == in_notebook, done.stdout


def test_bad_input_is_a_user_error_of_one_sentence(images, tmp_path):
    def said(*given, **how) -> str:
        with pytest.raises(UserError) as caught:
            mmairl.pretrain(*given, **{'out': tmp_path / 'out', 'size': 32, **how})
        return str(caught.value)

    assert "did you mean 'mocov2plus'" in said('moco_v2plus', images)
    assert 'there is no folder of images at' in said('byol', tmp_path / 'none')
    assert "the config has no 'modell'; did you mean 'model'" in said('byol', images, options={'modell.x': 1})
    for name, value in dict(epochs=0, batch=0.5, size='32').items():
        assert said('byol', images, **{'epochs': 1, name: value}).startswith(f'{name}={value!r} is not a whole number')
    assert 'fewer than one batch of 100' in said('byol', images, batch=100, options=NARROW)
    for number in range(20):
        (images / f'{number:02}.png').unlink()
    assert '52 images are too few to learn from' in said('byol', images)


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


def test_student_and_teacher_go_on_from_a_resnet_or_a_vit_at_a_tenth_of_the_rate(images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {**NARROW, 'model.projector.hidden_channels': 32}
    how = dict(size=32, batch=32, workers=0, seed=4)
    first = mmairl.pretrain('byol', images, 'a', 1, options=options, **how)
    kept = {key: value for key, value in options.items() if 'in_channels' not in key and 'backbone' not in key}
    vit = timm.create_model('vit_small_patch16_224', img_size=32, embed_dim=64, depth=4, num_heads=1)
    torch.save(vit.state_dict(), 'vit.pth')
    for file, out in ((first, 'b'), ('vit.pth', 'c')):
        before = read_backbone(file)
        frozen = {**kept, 'optim_wrapper.optimizer.weight_decay': 0.0, 'optim_wrapper.optimizer.lr': 0.0}
        last = mmairl.pretrain('byol', images, out, 1, weights=file, options=frozen, **how)
        for part in ('student', 'teacher'):
            after = read_backbone(last, part).weights
            learned = {
                key: value for key, value in before.weights.items() if 'running_' not in key and 'num_' not in key
            }
            assert all(
                torch.allclose(value, after[key], atol=1e-4) for key, value in learned.items()
            )  # warm-up has a rate
    lower, full = (config_for('byol', 72, images, kept, weights=file) for file in (first, None))
    assert lower.optim_wrapper.optimizer.lr == pytest.approx(full.optim_wrapper.optimizer.lr / 10)
    text = suggest('byol_lars', 5000, weights='vit.pth')
    assert "type='AdamW'" in text and 'a tenth of what a random start has' in text
    Path('mine.py').write_text(text)
    assert load_config('mine.py').model.backbone.init_cfg.checkpoint == str(tmp_path / 'vit.pth')
