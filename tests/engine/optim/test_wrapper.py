"""AutocastOptimWrapper on a CPU: precision, accumulation and resume."""

import copy

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from torch import nn

from mmairl.engine.optim.autocast import AutocastOptimWrapper
from mmairl.engine.optim.lars import LARS


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))


def wrap(model: nn.Module, **kwargs) -> AutocastOptimWrapper:
    return AutocastOptimWrapper(
        LARS(model.parameters(), lr=1.0, momentum=0.9, weight_decay=1e-3), **kwargs
    )


def train(
    model: nn.Module, wrapper: AutocastOptimWrapper, batches: list[torch.Tensor]
) -> list[torch.dtype]:
    """Update once per batch, as mmengine's ``train_step`` does. Return the dtypes of the outputs."""
    dtypes = []
    for batch in batches:
        with wrapper.optim_context(model):
            output = model(batch)
            dtypes.append(output.dtype)
            loss = output.float().square().mean()
        wrapper.update_params(loss)
    return dtypes


def batches(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 6, generator=generator) for _ in range(count)]


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_autocast_keeps_float32_weights(dtype):
    model, exact = network(), network()
    wrapper = wrap(model, dtype=dtype)
    assert train(model, wrapper, batches(5)) == [getattr(torch, dtype)] * 5
    train(exact, wrap(exact), batches(5))
    state = wrapper.optimizer.state.values()
    assert all(
        t.dtype == torch.float32
        for t in [*model.parameters(), *(s['momentum_buffer'] for s in state)]
    )
    torch.testing.assert_close(weights(model), weights(exact), rtol=0.02, atol=0.02)


def test_step_skipped_by_the_scaler_moves_nothing():
    model = network()
    wrapper = wrap(model, dtype='float16')
    for scale, moves in ((3e38, False), (8.0, True)):
        wrapper.loss_scaler = torch.amp.GradScaler('cpu', init_scale=scale)
        before = weights(model)
        train(model, wrapper, batches(1))
        assert wrapper.stepped == moves and torch.equal(weights(model), before) != moves


def test_loaded_momentum_has_the_layout_of_its_weight():
    """In checkpoints of runs in another memory layout, momenta have other strides. A fused step would ignore them."""

    def run(
        state: dict | None, layout: torch.memory_format, fused: bool
    ) -> tuple[dict, torch.Tensor]:
        torch.manual_seed(0)
        conv = nn.Conv2d(4, 6, 3).to(memory_format=layout)
        wrapper = AutocastOptimWrapper(
            torch.optim.SGD(conv.parameters(), lr=0.1, momentum=0.9, fused=fused)
        )
        if state is not None:
            conv.load_state_dict(state['weights'])
            wrapper.load_state_dict(state['optimizer'])
        for step in range(2):
            images = torch.randn(
                2, 4, 5, 5, generator=torch.Generator().manual_seed(step + 10 * (state is not None))
            )
            wrapper.update_params(conv(images).square().mean())
        return dict(
            weights=conv.state_dict(), optimizer=wrapper.state_dict()
        ), conv.weight.detach().clone()

    first_state, _ = run(None, torch.contiguous_format, fused=False)
    _, plain = run(copy.deepcopy(first_state), torch.contiguous_format, fused=False)
    _, fused = run(copy.deepcopy(first_state), torch.channels_last, fused=True)
    torch.testing.assert_close(fused, plain, rtol=0, atol=1e-6)


def test_accumulation_steps_with_the_mean_gradient():
    model, whole = network(), network()
    wrapper, small = wrap(model, accumulative_counts=4), batches(4)
    train(model, wrapper, small[:3])
    assert torch.equal(weights(model), weights(whole))
    train(model, wrapper, small[3:])
    train(whole, wrap(whole), [torch.cat(small)])
    torch.testing.assert_close(weights(model), weights(whole), rtol=1e-6, atol=1e-6)


def test_float16_resumes_a_float32_checkpoint():
    state = wrap(network()).state_dict()
    scaled = wrap(network(), dtype='float16')
    scale = scaled.loss_scaler.get_scale()
    scaled.load_state_dict(state)
    assert scaled.loss_scaler.get_scale() == scale


def test_groups_by_depth_need_no_settings():
    model = nn.Module()
    model.backbone = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8))
    wrapper = build_optim_wrapper(
        model,
        dict(
            type='AutocastOptimWrapper',
            constructor='LayerDecayConstructor',
            optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05),
        ),
    )
    decays = [group['weight_decay'] for group in wrapper.optimizer.param_groups]
    assert sorted(decays) == [0.0, 0.05]
