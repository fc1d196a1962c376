"""The suggested config: it loads and trains, and its numbers keep the rules that it gives as reasons."""

import numpy as np
import pytest
from PIL import Image

from mmairl.configs import load_config
from mmairl.engine import launch
from mmairl.engine.memory import GIB, activations, build, shares
from mmairl.engine.suggest import BASE, fitting, suggest
from mmairl.errors import UserError


def suggested(tmp_path, *given, **options):
    path = tmp_path / 'mine.py'
    path.write_text(suggest(*given))
    return load_config(path, options)


@pytest.mark.parametrize('gpus', [1, 3, 8])
@pytest.mark.parametrize('images', [64, 700, 5_000, 50_000, 126_689, 999_999, 1_281_167, 10**8])
def test_the_numbers_keep_their_rules(tmp_path, images, gpus):
    cfg = suggested(tmp_path, images, gpus)
    batch, queue = cfg.total_batch_size, cfg.model.queue.length
    assert batch % gpus == 0 and batch <= queue <= min(images / 4, 65536)
    assert images // batch >= min(16, images // 16) and queue / batch * (1 - cfg.default_hooks.momentum.base) <= 1.5
    assert cfg.optim_wrapper.optimizer.lr == pytest.approx(0.03 * batch / 256, rel=5e-3)
    assert cfg.train_cfg.max_epochs == (200 if images >= 10**6 else 400 if images >= 10**5 else 800)


def test_at_imagenets_size_it_is_the_benchmarks_recipe(tmp_path):
    cfg, paper = suggested(tmp_path, 1_281_167, 8), load_config('mmairl::mocov2plus_r50_200e.py')
    for of in (cfg, paper):
        for key in ('train_dataloader', 'auto_scale_lr'):
            of.pop(key)
        of.model.backbone.pop('depth'), of.model.projector.pop('in_channels')
    assert cfg.to_dict() == paper.to_dict()


@pytest.mark.parametrize('channels', [None, 5])
def test_the_printed_file_trains_on_a_folder(tmp_path, run_tool, capsys, channels):
    run_tool('tools/train.py', '--suggest', '--images', 640, *(['--channels', channels] if channels else []))
    (tmp_path / 'mine.py').write_text(capsys.readouterr().out)
    (tmp_path / 'images').mkdir()
    for index in range(16):
        pixels = np.random.default_rng(index).integers(0, 256, (20, 20, channels or 3), dtype=np.uint8)
        if channels:
            np.save(tmp_path / f'images/{index}.npy', pixels)
        else:
            Image.fromarray(pixels).save(tmp_path / f'images/{index}.png')
    small = {
        'train_dataloader.dataset.root': str(tmp_path / 'images'),
        'train_dataloader.num_workers': 0,
        'model.backbone.stem_channels': 8,
        'model.backbone.base_channels': 8,
        'model.projector.in_channels': 64,
        'total_batch_size': 8,
        'train_cfg.max_epochs': 1,
    }
    cfg = load_config(tmp_path / 'mine.py', small)
    cfg.work_dir = str(tmp_path / 'run')
    runner = launch.train(cfg)
    assert runner.model.backbone.conv1.in_channels == (channels or 3)
    assert runner.iter == 2 and np.isfinite(runner.message_hub.get_scalar('train/loss').current())
    assert 'the queue holds 128 keys and the training set 16 images' in ''.join(
        file.read_text() for file in (tmp_path / 'run').glob('*/*.log')
    )


@pytest.mark.slow
def test_what_fits_is_what_a_step_takes():
    cfg = load_config(BASE)

    def whole(count: int) -> float:
        parts = shares(build(cfg), 'SGD', 1)['DDP']
        return (sum(parts.values()) + activations(build(cfg), 2, count, 224)) / GIB

    memory = whole(64) / 0.9 * 1.01
    accumulated, said = fitting(256, 1, memory)
    assert accumulated == 4 and f'64 images at once take {whole(64):.1f} of' in said


def test_too_few_images_and_too_little_memory_are_one_sentence(run_tool, capsys):
    with pytest.raises(UserError, match='60 images are too few for a queue'):
        suggest(60)
    with pytest.raises(UserError, match='hold not even 2 images'):
        suggest(50_000, 1, 0.1)
    with pytest.raises(SystemExit, match='2'):
        run_tool('tools/train.py', '--suggest')
    assert 'give --images N' in capsys.readouterr().err
    with pytest.raises(SystemExit, match='2'):
        run_tool('tools/train.py')
    assert 'give a config, or --suggest' in capsys.readouterr().err
