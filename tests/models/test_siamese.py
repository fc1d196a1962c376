"""The network's contract: shapes, modes, key names, which views are keys, and who gets a gradient."""

from collections.abc import Callable

import pytest
import torch
import torchvision

from mmairl.errors import UserError
from mmairl.models import Siamese
from mmairl.registry import MODELS


@pytest.fixture
def build(toy_config) -> Callable[..., Siamese]:
    def built(**options) -> Siamese:
        model = MODELS.build(toy_config(width=8, **options).model)
        model.init_weights()
        return model

    return built


def views(count: int = 2) -> list[torch.Tensor]:
    return [torch.randn(4, 3, 64, 64) for _ in range(count)]


def test_the_loss_reaches_the_student_and_not_the_teacher_which_starts_as_its_copy(build):
    model = build(**{'model.teacher_predictor': True})
    assert all(torch.equal(p, model.get_parameter(name)) for name, p in model.teacher.named_parameters())
    assert model.teacher.predictor is not None
    model(views(), None, mode='loss')['loss'].backward()
    for name, p in model.named_parameters():
        assert (p.grad is None) == name.startswith('teacher.'), name


def test_the_backbone_has_torchvisions_keys_and_tensor_mode_pools_its_features(build):
    model, images = build().eval(), views()[0]
    keys = {k.removeprefix('backbone.') for k in model.state_dict() if k.startswith('backbone.')}
    assert keys == {k for k in torchvision.models.resnet18().state_dict() if not k.startswith('fc.')}
    assert model.backbone.layer1[0].bn2.weight.all(), 'a branch starts at zero'
    expected = model.backbone(images)[-1].flatten(2).mean(dim=2)
    torch.testing.assert_close(model(images, mode='tensor'), expected)


def test_each_view_has_batch_statistics_of_its_own(build):
    """A view's embedding must not change when the other view does: joined statistics would."""
    model, (one, two, other) = build(), views(3)
    first = model([one, two], mode='loss')['keys'][0].clone()
    torch.testing.assert_close(model([one, other * 3 + 1], mode='loss')['keys'][0], first)


def test_one_direction_encodes_no_more_than_it_needs(build):
    model = build(**{'model.symmetric': False})
    assert list(model(views(), mode='loss')['keys']) == [1]
    assert model.backbone.bn1.num_batches_tracked == 1


def test_the_views_that_become_keys_are_a_key(build):
    """As in a multi-crop: the teacher sees the large crops, and the small ones are compared with both."""
    model = build(**{'model.key_views': [0, 1], 'model.head': dict(_delete_=True, type='RegressionHead')})
    images = [torch.randn(4, 3, size, size) for size in (64, 64, 32)]
    found = model(images, mode='loss')
    assert list(found['keys']) == [0, 1] and model.teacher.backbone.bn1.num_batches_tracked == 2
    pairs = [(query, key) for query in range(3) for key in (0, 1) if query != key]
    q = [model.predictor(model.projector(model(view))) for view in images]
    expected = sum(2 - 2 * torch.cosine_similarity(q[i], found['keys'][j]).mean() for i, j in pairs)
    torch.testing.assert_close(found['loss'], expected)


def test_a_step_logs_numbers_and_leaves_the_keys_to_the_queue(build):
    model = build()
    found = model(views(), mode='loss')
    loss, logged = model.parse_losses(found)
    assert torch.equal(loss, found['loss']) and 'keys' not in logged and model.queue.fresh is found['keys']


MISTAKES = {
    'set model.predictor': {'model.teacher_predictor': True, 'model.predictor': None},
    'say teacher, student': {'model.target': 'pupil'},
    'set a positive length': {'model.queue.length': 0},
    'say noise': {'model.queue.start': 'full'},
}


def test_a_wrong_setting_is_one_sentence(build):
    for sentence, setting in MISTAKES.items():
        with pytest.raises(UserError, match=sentence):
            build(**setting)


def test_views_that_do_not_suffice_are_refused(build):
    with pytest.raises(UserError, match='got 1'):
        build()(views(1), mode='loss')
    with pytest.raises(UserError, match='key_views'):
        build(**{'model.key_views': [2]})(views(), mode='loss')
