"""A student learns the features of a frozen teacher, of which checkpoints hold the digest. Gram anchoring equals loops."""

import pytest
import torch
import torch.nn.functional as F
from harness.errors import raises_code
from harness.losses import assert_same, rows
from torch import nn

from mmairl.checkpoints.read import read_backbone
from mmairl.engine import run
from mmairl.models.heads.distill import (
    DistillationHead,
    FrozenTeacher,
    gram_distance,
    patch_distance,
)
from mmairl.models.siamese import Siamese
from mmairl.registry import MODELS

CONFIG = 'distill/r50_from_dinov2_vits14.py'
VIT = dict(
    type='TimmBackbone',
    name='vit_tiny_patch16_224',
    img_size=32,
    patch_size=8,
    embed_dim=16,
    depth=1,
    num_heads=2,
    tokens=True,
)


@pytest.fixture
def build(toy_config):
    def built(**options: object) -> Siamese:
        cfg = toy_config(CONFIG, width=8)
        cfg.model.data_preprocessor = dict(type='ViewPreprocessor', mean=(0.2,) * 3, std=(0.3,) * 3)
        cfg.merge_from_dict(options)
        torch.manual_seed(0)
        model = MODELS.build(cfg.model)
        model.init_weights()
        return model

    return built


def crops() -> list[torch.Tensor]:
    return [torch.randn(4, 3, 32, 32) for _ in range(2)]


def test_distillation_equals_its_formulas():
    q, k = rows(2, 5), {view: z.detach() for view, z in rows(2, 5).items()}
    expected = sum(1 - torch.cosine_similarity(q[view], k[view]).mean() for view in (0, 1)) / 2
    assert_same(DistillationHead()(q, k, None)['loss'], expected, list(q.values()))
    queue = F.normalize(torch.randn(7, 4, dtype=torch.float64), dim=1)
    expected = 0.0
    for view in (0, 1):
        ours, theirs = (F.normalize(side[view], dim=1) @ queue.T / 0.07 for side in (q, k))
        expected = expected - (theirs.softmax(1) * ours.log_softmax(1)).sum(1).mean() / 2
    assert_same(DistillationHead()(q, k, queue)['loss'], expected, list(q.values()))


def test_frozen_teacher_leaves_only_its_digest(build):
    model = build()
    (network,) = model.teacher.hidden
    before = {key: value.clone() for key, value in network.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    losses, views = [], crops()
    for _ in range(5):
        loss = model(views, mode='loss')['loss']
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.teacher.follow(model, 0.9)
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert not network.training
    assert [key for key in model.state_dict() if 'teacher' in key] == ['teacher._extra_state']
    model.load_state_dict(model.state_dict())
    stored = model.state_dict()
    next(network.parameters()).data.add_(1e-6)
    with raises_code('other-teacher'):
        model.load_state_dict(stored)


def test_teacher_features_equal_those_of_timm(build):
    """The teacher sees the student's images with timm's mean and standard deviation, in its own size."""
    model = build(**{'model.teacher': dict(type='FrozenTeacher', backbone=VIT, size=32)})
    pixels = torch.rand(4, 3, 48, 48)
    (network,) = model.teacher.hidden
    mean, std = (
        torch.tensor(network.pretrained_cfg[key]).view(-1, 1, 1) for key in ('mean', 'std')
    )
    resized = F.interpolate((pixels - mean) / std, (32, 32), mode='bicubic', antialias=True)
    tokens = network.forward_features(resized)
    found = model.teacher((pixels - 0.2) / 0.3, model.data_preprocessor)
    torch.testing.assert_close(found.pooled, tokens[:, 0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        found.patches.flatten(2).transpose(1, 2), tokens[:, 1:], atol=1e-5, rtol=1e-4
    )
    torch.testing.assert_close(network.forward_head(tokens), found.pooled, atol=1e-5, rtol=1e-4)
    own = FrozenTeacher(VIT, mean=(0.2,) * 3, std=(0.3,) * 3)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(
        own(images, model.data_preprocessor).pooled, own.hidden[0](images)[:, 0]
    )


def test_patch_distance_equals_its_formula():
    projector = nn.Linear(3, 5).double()
    student = torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(2, 5, 4, 4, dtype=torch.float64)
    expected = 0.0
    for image in range(2):
        for row in range(2):
            for column in range(2):
                # At half the size, bilinear interpolation averages four patches.
                target = teacher[image, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].mean(
                    dim=(1, 2)
                )
                query = projector(student[image, :, row, column])
                expected = expected + (1 - torch.cosine_similarity(query, target, dim=0)) / 8
    assert_same(patch_distance(projector, student, teacher), expected, [student])


def test_patches_of_the_teacher_add_a_loss(build):
    options = {
        'model.teacher': dict(type='FrozenTeacher', backbone=VIT, patches=0.5),
        'model.projector.out_channels': 16,
    }
    model, views = build(**options), crops()
    results = model(views, mode='loss')
    model.teacher.patches = 0
    plain = model(views, mode='loss')
    torch.testing.assert_close(results['loss'], plain['loss'] + 0.5 * results['patch_distance'])
    assert 'patch_distance' not in plain


def test_gram_distance_equals_loops():
    student = torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    anchor = torch.randn(2, 5, 2, 2, dtype=torch.float64)
    expected = 0.0
    for image in range(2):
        ours, theirs = (maps[image].flatten(1).T for maps in (student, anchor))
        for one in range(4):
            for other in range(4):
                cosines = [
                    torch.cosine_similarity(side[one], side[other], dim=0)
                    for side in (ours, theirs)
                ]
                expected = expected + (cosines[0] - cosines[1]) ** 2 / 32
    assert_same(gram_distance(student, anchor), expected, [student])


def test_gram_compares_patches_with_those_at_the_start(build):
    model, views = (
        build(**{'model.gram': 2.0, 'model.backbone': dict(VIT, _delete_=True), **WIDTH}),
        crops(),
    )
    model.eval()
    start = model(views, mode='loss')
    torch.testing.assert_close(start['gram'], torch.zeros(()), atol=1e-9, rtol=0)
    for weight in model.backbone.parameters():
        weight.data.add_(0.1 * torch.randn_like(weight))
    results = model(views, mode='loss')
    assert results['gram'] > 1e-4
    torch.testing.assert_close(results['loss'], 1 - results['similarity'] + 2 * results['gram'])
    results['loss'].backward()
    assert all(weight.grad is None for weight in model.anchor.parameters())
    assert not model.train().anchor.training


NO_TOKENS = dict(VIT, tokens=False)
WIDTH = {'model.projector.in_channels': 16}
OTHER = {'model.projector.out_channels': 8}


@pytest.mark.parametrize(
    'code, options',
    [
        ('no-frozen-teacher', {'model.target': 'teacher'}),
        ('no-frozen-teacher', {'model.teacher': None}),
        (
            'unavailable-model',
            {'model.teacher.backbone': dict(type='TimmBackbone', name='no_such_network')},
        ),
        ('head-width', OTHER),
        (
            'head-width',
            {'model.teacher': dict(type='FrozenTeacher', backbone=VIT, patches=1.0), **OTHER},
        ),
        (
            'no-patch-tokens',
            {'model.teacher': dict(type='FrozenTeacher', backbone=NO_TOKENS, patches=1.0)},
        ),
        (
            'no-patch-tokens',
            {'model.gram': 1.0, 'model.backbone': dict(NO_TOKENS, _delete_=True), **WIDTH},
        ),
    ],
)
def test_wrong_distillation_raises(build, code, options):
    with raises_code(code):
        build(**options)(crops(), mode='loss')


def test_distillation_with_an_anchor_resumes_exactly(toy_config, tmp_path):
    def trained(folder: str, **options: object) -> dict[str, torch.Tensor]:
        cfg = toy_config(CONFIG, steps=4, width=8, **{'model.gram': 1.0}, **options)
        cfg.work_dir = str(tmp_path / folder)
        return run.train(cfg).model.state_dict()

    whole = trained('whole')
    resumed = trained('resumed', resume=True, load_from=str(tmp_path / 'whole/iter_2.pth'))
    assert whole.keys() == resumed.keys() and any(key.startswith('anchor.') for key in whole)
    assert all(torch.equal(value, resumed[key]) for key, value in whole.items())
    found = read_backbone(tmp_path / 'whole/iter_4.pth').weights
    assert all(torch.equal(value, whole[f'backbone.{key}']) for key, value in found.items())
