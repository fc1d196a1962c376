"""The networks that images are looked at with."""

import torch
from study.small_runs import rows_of

from mmairl.analysis.subjects import Images
from mmairl.apis.suggest import suggest
from mmairl.config import load_config
from mmairl.engine.run import register
from mmairl.registry import MODELS
from mmairl.study.scale import read_scale, resolve


def test_a_study_of_cifar_has_its_networks_looked_at_as_they_were_trained(tmp_path):
    """Their stem is 3 x 3 without a pool, which a config that goes on from their weights takes over."""
    register()
    cfg = resolve(next(iter(rows_of('ladder').values())), read_scale('cifar'))
    cfg.evaluation.test = dict(type='Shapes', count=8, size=32)
    trained, file = MODELS.build(cfg.model.backbone), tmp_path / 'a.pth'
    trained.eval()  # mmpretrain's returns nothing
    torch.save({f'backbone.{key}': value for key, value in trained.state_dict().items()}, file)
    images = Images(cfg, 8)
    found, batch = images.network(str(file), 'student'), next(iter(images))
    with torch.no_grad():
        torch.testing.assert_close(found(batch)[-1], trained(batch)[-1])
    (tmp_path / 'mine.py').write_text(suggest('mocov2plus', 64, weights=file))
    assert load_config(tmp_path / 'mine.py').model.backbone.type == cfg.model.backbone.type
