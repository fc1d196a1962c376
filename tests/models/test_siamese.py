"""The network's contract: shapes, modes, key names, and who gets a gradient."""

import pytest
import torch
import torchvision
from mmengine.config import Config

from mmairl.errors import UserError, explained
from mmairl.models import Siamese
from mmairl.registry import MODELS


def build(cfg: Config) -> Siamese:
    model = MODELS.build(cfg.model)
    model.init_weights()
    return model


def views(count: int = 2) -> list[torch.Tensor]:
    return [torch.randn(4, 3, 64, 64) for _ in range(count)]


def test_loss_mode_takes_views_and_returns_a_training_loss(toy_config):
    model = build(toy_config())
    found = model(views(), None, mode='loss')
    found['loss'].backward()
    for name, p in model.named_parameters():
        assert (p.grad is None) == name.startswith('teacher.'), name


def test_tensor_mode_returns_pooled_features_of_one_batch(toy_config):
    model = build(toy_config())
    images = views()[0]
    model.eval()
    expected = model.backbone(images)[-1].flatten(2).mean(dim=2)
    torch.testing.assert_close(model(images, mode='tensor'), expected)


def test_the_backbone_has_torchvisions_keys(toy_config):
    keys = {k.removeprefix('backbone.') for k in build(toy_config()).state_dict() if k.startswith('backbone.')}
    assert keys == {k for k in torchvision.models.resnet18().state_dict() if not k.startswith('fc.')}


def test_residual_branches_are_not_started_at_zero(toy_config):
    assert build(toy_config()).backbone.layer1[0].bn2.weight.all()


def test_the_teacher_is_a_copy_after_initialisation(toy_config):
    model = build(toy_config())
    for name, p in model.teacher.named_parameters():
        assert torch.equal(p, model.get_parameter(name))


def test_each_view_has_batch_statistics_of_its_own(toy_config):
    """A view's embedding must not change when the other view does: joined statistics would."""
    model = build(toy_config())
    one, two, other = views(3)
    first = model([one, two], mode='loss')['keys'][0].clone()
    torch.testing.assert_close(model([one, other * 3 + 1], mode='loss')['keys'][0], first)


def test_one_direction_encodes_no_more_than_it_needs(toy_config):
    model = build(toy_config(**{'model.symmetric': False}))
    assert list(model(views(), mode='loss')['keys']) == [1]
    assert model.backbone.bn1.num_batches_tracked == 1


def test_the_views_that_become_keys_are_a_key(toy_config):
    """As in a multi-crop: the teacher sees the large crops, and the small ones are compared with both."""
    model = build(toy_config(**{'model.key_views': [0, 1], 'model.head': dict(_delete_=True, type='RegressionHead')}))
    images = [torch.randn(4, 3, size, size) for size in (64, 64, 32)]
    found = model(images, mode='loss')
    assert list(found['keys']) == [0, 1] and model.teacher.backbone.bn1.num_batches_tracked == 2
    pairs = [(query, key) for query in range(3) for key in (0, 1) if query != key]
    q = [model.predictor(model.projector(model(view))) for view in images]
    expected = sum(2 - 2 * torch.cosine_similarity(q[i], found['keys'][j]).mean() for i, j in pairs)
    torch.testing.assert_close(found['loss'], expected)
    with pytest.raises(UserError, match='key_views'):
        build(toy_config(**{'model.key_views': [2]}))(views(), mode='loss')


def test_a_step_logs_numbers_and_leaves_the_keys_to_the_queue(toy_config):
    model = build(toy_config())
    found = model(views(), mode='loss')
    loss, logged = model.parse_losses(found)
    assert torch.equal(loss, found['loss']) and 'keys' not in logged and model.queue.fresh is found['keys']


def test_a_teacher_predictor_is_averaged_like_the_rest(toy_config):
    model = build(toy_config(**{'model.teacher_predictor': True}))
    with torch.no_grad():
        model.predictor.mlp[0].weight.add_(1)
    model.teacher.follow(model, 0.5)
    torch.testing.assert_close(model.teacher.predictor.mlp[0].weight, model.predictor.mlp[0].weight - 0.5)


def test_a_teacher_predictor_without_a_student_predictor_is_refused(toy_config):
    cfg = toy_config(**{'model.teacher_predictor': True})
    cfg.model.predictor = None
    with pytest.raises(UserError, match='set model.predictor'), explained():
        build(cfg)


def test_one_view_is_refused(toy_config):
    with pytest.raises(UserError, match='got 1'):
        build(toy_config())(views(1), mode='loss')
