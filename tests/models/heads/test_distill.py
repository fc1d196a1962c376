"""A student learns the features of a frozen teacher, which leaves no trace in optimizer and checkpoint."""

import torch
import torch.nn.functional as F
from harness.errors import raises_code
from harness.losses import assert_same, rows

from mmairl.models.heads.distill import DistillationHead
from mmairl.registry import MODELS

CONFIG = 'distill/r50_from_dinov2_vits14.py'


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
    with raises_code('head-width'):
        DistillationHead()(q, {view: z[:, :3] for view, z in k.items()}, None)


def test_frozen_teacher_leaves_no_trace(toy_config):
    model = MODELS.build(toy_config(CONFIG, width=8).model)
    model.init_weights()
    (network,) = model.teacher.hidden
    before = {key: value.clone() for key, value in network.state_dict().items()}
    images = [torch.randn(4, 3, 32, 32) for _ in range(2)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    losses = []
    for _ in range(5):
        loss = model(images, mode='loss')['loss']
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.teacher.follow(model, 0.9)
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert not network.training and not any('teacher' in key for key in model.state_dict())
    assert torch.equal(model.teacher(images[0]), network(images[0]))


def test_target_without_its_teacher_raises(toy_config):
    for options in ({'model.target': 'teacher'}, {'model.teacher': None}):
        with raises_code('no-frozen-teacher'):
            MODELS.build(toy_config(CONFIG, width=8, **options).model)
