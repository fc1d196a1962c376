"""The whole step beside mmpretrain's: that both sides do the same work, and that the check would see it if they did not."""

import pytest
import torch

from projects.benchmark.step import (
    TINY,
    copy_weights,
    flops,
    mmpretrain_byol,
    mmpretrain_moco,
    our_step,
    same,
    siamese,
    step,
    their_step,
)
from projects.benchmark.timing import compare


@pytest.fixture
def batch():
    views = torch.randint(0, 256, (2, TINY.batch, 3, TINY.image, TINY.image), dtype=torch.uint8)
    return dict(inputs=list(views), data_samples={})


def test_every_case_runs_and_passes_its_check():
    rows = [compare(case, rounds=1) for case in step('cpu', quick=True)]
    assert len(rows) == 5 and all(row.flops == flops(TINY) for row in rows)
    assert sum(row.aim != '' for row in rows) == 2


def test_loss_and_gradients_are_mmpretrains(batch):
    ours, theirs = siamese(TINY, 'byol').double(), mmpretrain_byol(TINY).double()
    copy_weights(ours, theirs)
    views = [view.double() / 255 for view in batch['inputs']]
    losses = ours.loss(views)['loss'], theirs.loss(views, None)['loss']
    torch.testing.assert_close(losses[0], losses[1] + 4, atol=1e-12, rtol=0)
    for loss in losses:
        loss.backward()
    for name, weight in ours.backbone.named_parameters():
        torch.testing.assert_close(weight.grad, theirs.backbone.get_parameter(name).grad, atol=1e-10, rtol=1e-8)


def test_the_check_sees_a_different_step(batch):
    ours, theirs = siamese(TINY, 'byol'), mmpretrain_byol(TINY)
    copy_weights(ours, theirs)
    found, expected = our_step(ours, batch)(), their_step(theirs, batch)()
    same(found, expected)
    with pytest.raises(AssertionError):
        same({**found, 'loss': found['loss'] + 0.01}, expected)
    with pytest.raises(AssertionError, match='first layers move differently'):
        same({**found, 'first': 1.1 * found['first']}, expected)


def test_a_step_moves_weights_teacher_queue_and_statistics(batch):
    model = siamese(TINY, 'mocov2plus')
    before = {name: t.clone() for name, t in model.state_dict().items() if isinstance(t, torch.Tensor)}
    run = our_step(model, batch, 'SGD', precision='bfloat16', channels_last=True)
    first, second = run(), run()
    after = model.state_dict()
    names = ('backbone.conv1.weight', 'teacher.backbone.conv1.weight', 'backbone.bn1.running_mean', 'queue.vectors')
    assert all(not torch.equal(before[name], after[name]) for name in names)
    assert model.queue.position == 2 * TINY.batch and not torch.equal(first['loss'], second['loss'])


def test_flops_are_those_of_eight_forward_passes():
    """Two student passes, whose backward passes cost twice as much, and two teacher passes."""
    from torch.utils.flop_counter import FlopCounterMode

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
