"""The whole step beside mmpretrain's: both sides do the same work, and the check would see it if they did not."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from projects.benchmark import step as suite
from projects.benchmark.step import (
    TINY,
    check_one_step,
    flops,
    mmpretrain_byol,
    mmpretrain_moco,
    our_step,
    random_batch,
    same_step,
    siamese,
)


def test_the_check_sees_a_different_step(monkeypatch):
    check_one_step()
    seen = []
    monkeypatch.setattr(suite, 'same_step', lambda *sides: seen.extend(sides))
    check_one_step()
    ours, theirs = seen
    with pytest.raises(AssertionError):
        same_step({**ours, 'loss': ours['loss'] + 1e-5}, theirs)
    with pytest.raises(AssertionError, match='first layers move differently'):
        same_step({**ours, 'first': (1 + 1e-3) * ours['first']}, theirs)


def test_a_step_moves_weights_teacher_queue_and_statistics():
    model = siamese(TINY, 'mocov2plus')
    before = {name: t.clone() for name, t in model.state_dict().items() if isinstance(t, torch.Tensor)}
    run = our_step(model, random_batch(TINY), 'SGD', precision='bfloat16', channels_last=True)
    first, second = run(), run()
    after = model.state_dict()
    names = ('backbone.conv1.weight', 'teacher.backbone.conv1.weight', 'backbone.bn1.running_mean', 'queue.vectors')
    assert all(not torch.equal(before[name], after[name]) for name in names)
    assert model.queue.position == 2 * TINY.batch and not torch.equal(first['loss'], second['loss'])


def test_flops_are_those_of_eight_forward_passes():
    """Two student passes, whose backward passes cost twice as much, and two teacher passes."""
    backbone, image = siamese(TINY, 'byol').backbone, torch.zeros(TINY.batch, 3, TINY.image, TINY.image)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        backbone(image)
    # no gradient goes back to the images; projector and predictor come on top
    assert flops(TINY) == pytest.approx(8 * counter.get_total_flops(), rel=0.05)


def test_the_peers_have_the_same_backbone_and_their_published_parts():
    byol, moco, ours = mmpretrain_byol(TINY), mmpretrain_moco(TINY), siamese(TINY, 'byol')
    count = sum(weight.numel() for weight in ours.backbone.parameters())
    assert all(sum(weight.numel() for weight in peer.backbone.parameters()) == count for peer in (byol, moco))
    assert moco.queue.shape == (128, TINY.queue) and byol.target_net.momentum == 0.01
