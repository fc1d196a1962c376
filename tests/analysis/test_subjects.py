"""The networks that an analysis builds from configs and checkpoints."""

import pytest
import torch

from mmairl.analysis.subjects import Images
from mmairl.apis.suggest import suggest
from mmairl.config import load_config
from mmairl.engine.run import register
from mmairl.errors import UserError
from mmairl.models.siamese import encode, project
from mmairl.registry import MODELS
from mmairl.study.scale import read_scale, resolve
from mmairl.study.study import Row


@torch.no_grad()
def test_network_keeps_the_stem_it_was_trained_with(tmp_path):
    """Networks trained on CIFAR have a 3 x 3 stem without pooling.

    A config that starts from these weights keeps this stem.
    """
    register()
    first_row = Row('MoCo v2', 'mocov2_r50_200e.py')
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


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """Return a config, its model and the model's checkpoint. A training pass has moved the batch-norm statistics."""
    register()
    cfg = load_config('mmairl::demo/mocov2plus_shapes.py')
    cfg.evaluation.test = dict(type='Shapes', count=8, size=32)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model).train()
    model([torch.randn(4, 3, 32, 32), torch.randn(4, 3, 32, 32)], None, mode='loss')
    path = tmp_path_factory.mktemp('layers') / 'a.pth'
    torch.save(dict(meta={}, state_dict=model.state_dict()), path)
    return cfg, model.eval(), str(path)


@pytest.mark.parametrize('layer,expected', [('projector', project), ('predictor', encode)])
def test_layer_after_the_backbone_equals_its_output(trained, layer, expected):
    cfg, model, path = trained
    images = Images(cfg, 8)
    batch = next(iter(images))
    with torch.no_grad():
        features = images.network(path, 'student', layer)(batch)
        torch.testing.assert_close(features, expected(model, batch))
        if layer == 'projector':
            features = images.network(path, 'teacher', layer)(batch)
            torch.testing.assert_close(features, project(model.teacher, batch))


def test_layer_that_a_part_lacks_is_an_error(trained):
    cfg, _, path = trained
    with pytest.raises(UserError) as caught:
        Images(cfg, 8).network(path, 'teacher', 'predictor')
    assert caught.value.code == 'no-such-head'


def test_projector_of_a_checkpoint_without_one_is_an_error(trained, tmp_path):
    cfg, model, _ = trained
    torch.save(model.backbone.state_dict(), tmp_path / 'plain.pth')
    with pytest.raises(UserError) as caught:
        Images(cfg, 8).network(str(tmp_path / 'plain.pth'), 'student', 'projector')
    assert caught.value.code == 'no-such-head'
