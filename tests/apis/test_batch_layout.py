"""Plans that keep the schedule, and those that cannot."""

from pathlib import Path

import pytest
from mmengine.config import Config

from mmairl.apis.batch_layout import follow, plan
from mmairl.engine import run
from mmairl.errors import UserError

CONFIG = Path(__file__).parents[2] / 'configs/mocov2plus_r50_200e.py'


@pytest.mark.parametrize('gpus,per_gpu,accumulation', [(8, 128, 1), (4, 64, 4), (1, 256, 4), (16, 64, 1)])
def test_the_total_batch_and_so_the_rate_stay(gpus, per_gpu, accumulation):
    cfg = Config.fromfile(CONFIG)
    found, text = plan(cfg, gpus, per_gpu)
    assert found == accumulation and gpus * per_gpu * accumulation == 1024
    assert 'learning rate  0.12' in text and 'warm-up        10 epochs' in text
    assert ('batch statistics are over' in text) == (accumulation > 1)
    follow(cfg, found)
    run.share_batch(cfg, gpus)
    assert cfg.train_dataloader.batch_size == per_gpu


@pytest.mark.parametrize(
    'gpus,per_gpu,sentence',
    [
        (8, 256, 'more than the 1024 of the schedule; lower the per-GPU batch to 128'),
        (4, 100, 'do not divide the total batch of 1024; try a per-GPU batch of 64'),
        (3, 8, 'use a number of GPUs that divides it'),
    ],
)
def test_what_cannot_be_equal_is_refused(gpus, per_gpu, sentence):
    with pytest.raises(UserError, match=sentence):
        plan(Config.fromfile(CONFIG), gpus, per_gpu)
