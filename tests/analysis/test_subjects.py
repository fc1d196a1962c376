"""The networks that the analysis compares."""

import torch
from study.small_runs import rows_of

from mmairl.analysis.subjects import Images
from mmairl.apis.suggest import suggest
from mmairl.config import load_config
from mmairl.engine.run import register
from mmairl.registry import MODELS
from mmairl.study.scale import read_scale, resolve


@torch.no_grad()
def test_network_keeps_the_stem_it_was_trained_with(tmp_path):
    """At CIFAR's scale, the stem is 3 x 3 without a pool; a config that starts from these weights has it, too."""
    register()
    first_row, *_ = rows_of('ladder').values()
    cfg = resolve(first_row, read_scale('cifar'))
    cfg.evaluation.test = dict(type='Shapes', count=8, size=32)
    trained = MODELS.build(cfg.model.backbone)
    trained.eval()
    file = tmp_path / 'a.pth'
    torch.save({f'backbone.{key}': value for key, value in trained.state_dict().items()}, file)
    images = Images(cfg, 8)
    loaded = images.network(str(file), 'student')
    batch = next(iter(images))
    torch.testing.assert_close(loaded(batch)[-1], trained(batch)[-1])
    (tmp_path / 'mine.py').write_text(suggest('mocov2plus', 64, weights=file))
    assert load_config(tmp_path / 'mine.py').model.backbone.type == cfg.model.backbone.type
