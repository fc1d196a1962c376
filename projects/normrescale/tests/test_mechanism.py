"""Test that a network with only gains and biases rescaled computes the same as a network with all weights rescaled."""

import torch

from mmairl.checkpoints.normrescale import normrescale
from mmairl.checkpoints.read import Backbone
from mmairl.registry import MODELS
from projects.normrescale.mechanism import gains_alone


def test_gains_equal_the_form_with_kernel_norms():
    torch.manual_seed(0)
    network = MODELS.build(
        dict(type='mmpretrain.ResNet', depth=18, stem_channels=8, base_channels=8)
    ).double()
    own = {
        name: value * 5 if value.is_floating_point() else value
        for name, value in network.state_dict().items()
    }
    anchor = {
        name: torch.rand_like(value) if value.is_floating_point() else value
        for name, value in own.items()
    }
    plain, _ = normrescale(own, anchor)
    before, after = (
        Backbone(weights, '', 'mmairl', 'student') for weights in (own, {**own, **plain})
    )
    alone = gains_alone(before, after).weights
    images = torch.randn(8, 3, 64, 64, dtype=torch.float64)

    def features(weights):
        network.load_state_dict(weights)
        return network(images)[-1]  # in training mode, batch norm uses the statistics of the batch

    kernel = 'conv1.weight'
    assert torch.equal(alone[kernel], own[kernel]) and not torch.equal(plain[kernel], own[kernel])
    torch.testing.assert_close(features(alone), features(after.weights), rtol=1e-3, atol=1e-3)
    assert (features(own) - features(alone)).abs().max() > 0.1
