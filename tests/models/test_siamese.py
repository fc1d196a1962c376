"""Siamese: its modes, the names of its weights, the selection of key views, and gradients."""

from collections.abc import Callable

import pytest
import torch
import torchvision
from harness.errors import raises_code
from mmcv.cnn.bricks import DropPath

from mmairl.models.siamese import Siamese, Teacher
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


def test_teacher_starts_as_a_copy_without_gradient(build):
    model = build(**{'model.teacher_predictor': True})
    assert all(
        torch.equal(p, model.get_parameter(name)) for name, p in model.teacher.named_parameters()
    )
    assert model.teacher.predictor is not None
    model(views(), None, mode='loss')['loss'].backward()
    for name, p in model.named_parameters():
        assert (p.grad is None) == name.startswith('teacher.'), name


def test_teacher_can_have_its_own_initial_weights(build):
    model = build(**{'model.copy_student': False})
    assert not torch.equal(model.backbone.conv1.weight, model.teacher.backbone.conv1.weight)
    assert not torch.equal(model.projector.mlp[0].weight, model.teacher.projector.mlp[0].weight)
    one, two = (
        model.backbone.conv1.weight.std().item(),
        model.teacher.backbone.conv1.weight.std().item(),
    )
    # Both weights come from the same distribution.
    assert one == pytest.approx(two, rel=0.1)


def test_backbone_has_torchvision_keys_and_is_pooled(build):
    model, images = build().eval(), views()[0]
    keys = {k.removeprefix('backbone.') for k in model.state_dict() if k.startswith('backbone.')}
    assert keys == {
        k for k in torchvision.models.resnet18().state_dict() if not k.startswith('fc.')
    }
    assert model.backbone.layer1[0].bn2.weight.all(), (
        'the branch of a residual block starts at zero'
    )
    expected = model.backbone(images)[-1].flatten(2).mean(dim=2)
    torch.testing.assert_close(model(images, mode='tensor'), expected)


def test_teacher_has_no_drop_path():
    student, images = DropPath(0.5), torch.ones(64, 3)
    teacher = Teacher(student, torch.nn.Identity(), None).train()
    assert torch.equal(teacher.backbone(images), images) and not student(images).all()


def test_key_views_select_the_keys(build):
    """With multi-crop views, the teacher sees only the two large crops.

    The query of each view is compared with the keys of all large crops, except the key of the same view.
    """
    model = build(
        **{'model.key_views': [0, 1], 'model.head': dict(_delete_=True, type='RegressionHead')}
    )
    images = [torch.randn(4, 3, size, size) for size in (64, 64, 32)]
    results = model(images, mode='loss')
    assert list(model.keys) == [0, 1] and model.teacher.backbone.bn1.num_batches_tracked == 2
    pairs = [(query, key) for query in range(3) for key in (0, 1) if query != key]
    q = [model.predictor(model.projector(model(view))) for view in images]
    expected = sum(2 - 2 * torch.cosine_similarity(q[i], model.keys[j]).mean() for i, j in pairs)
    torch.testing.assert_close(results['loss'], expected)


@pytest.mark.parametrize(
    'target, learns', [('student', True), ('stop_gradient', False), ('teacher', False)]
)
def test_only_keys_of_the_student_have_gradients(build, target, learns):
    model = build(**{'model.target': target})
    seen = []
    model.head.register_forward_pre_hook(lambda head, arguments: seen.append(arguments[:2]))
    model(views(), mode='loss')
    ((queries, keys),) = seen
    assert all(query.requires_grad for query in queries.values())
    assert [key.requires_grad for key in keys.values()] == [learns, learns]


@pytest.mark.parametrize(
    'code, options, count',
    [
        ('unknown-target', {'model.target': 'pupil'}, 2),
        ('unknown-start', {'model.queue.start': 'full'}, 2),
        ('no-such-view', {'model.key_views': [2]}, 2),
        ('no-such-view', {'model.key_views': [0, -1]}, 2),
        ('too-few-views', {}, 1),
        ('no-patch-loss', {'model.masking': dict(type='BlockMasking')}, 2),
    ],
)
def test_invalid_model_setting_raises(build, code, options, count):
    with raises_code(code):
        build(**options)(views(count), mode='loss')
