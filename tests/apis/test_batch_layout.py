"""A batch layout must keep the total batch size; otherwise, an error is raised."""

from pathlib import Path

import pytest
from harness.errors import raises_code
from mmengine.config import Config

from mmairl.apis.batch_layout import follow, plan
from mmairl.engine import run

CONFIG = Path(__file__).parents[2] / 'configs/mocov2plus_r50_200e.py'


@pytest.mark.parametrize('gpus, per_gpu, accumulation', [(8, 128, 1), (4, 64, 4), (1, 256, 4), (16, 64, 1)])
def test_total_batch_and_rate_stay_the_same(gpus, per_gpu, accumulation):
    cfg = Config.fromfile(CONFIG)
    layout, text = plan(cfg, gpus, per_gpu)
    assert layout == accumulation and gpus * per_gpu * accumulation == 1024
    assert 'learning rate  0.12' in text and 'warm-up        10 epochs' in text
    assert ('batch statistics are over' in text) == (accumulation > 1)
    follow(cfg, layout)
    run.share_batch(cfg, gpus)
    assert cfg.train_dataloader.batch_size == per_gpu


def test_constant_rate_has_no_warm_up():
    cfg = Config.fromfile(CONFIG)
    cfg.param_scheduler = []
    assert 'warm-up        none' in plan(cfg, 8, 64)[1]


@pytest.mark.parametrize(
    'gpus, per_gpu, advice', [(8, 256, 'to 128'), (4, 100, 'to 64'), (3, 8, 'GPUs that'), (3, 999, 'GPUs that')]
)
def test_layout_that_changes_the_batch_is_an_error(gpus, per_gpu, advice):
    with raises_code('bad-batch', match=advice):
        plan(Config.fromfile(CONFIG), gpus, per_gpu)
