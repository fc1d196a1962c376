"""AutocastOptimWrapper on a CPU: precision, accumulation, clipping and resume."""

import copy
from types import SimpleNamespace

import pytest
import torch
from harness.errors import raises_code
from mmengine.logging import MessageHub
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mmairl.engine.hooks.progress import AsyncRuntimeInfoHook
from mmairl.engine.optim.autocast import AutocastOptimWrapper
from mmairl.engine.optim.lars import LARS


def network() -> nn.Module:
    """Return a linear layer, a norm and a linear layer.

    LARS then has a group of adapted weights and a group of other parameters.
    """
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))


def wrap(model: nn.Module, **kwargs) -> AutocastOptimWrapper:
    return AutocastOptimWrapper(LARS(model.parameters(), lr=1.0, momentum=0.9, weight_decay=1e-3), **kwargs)


def train(model: nn.Module, wrapper: AutocastOptimWrapper, batches: list[torch.Tensor]) -> list[torch.dtype]:
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
    assert wrapper.loss_scaler.is_enabled() == (dtype == 'float16')
    assert train(model, wrapper, batches(5)) == [getattr(torch, dtype)] * 5
    train(exact, wrap(exact), batches(5))
    state = wrapper.optimizer.state.values()
    assert all(t.dtype == torch.float32 for t in [*model.parameters(), *(s['momentum_buffer'] for s in state)])
    assert not torch.equal(weights(model), weights(network()))
    torch.testing.assert_close(weights(model), weights(exact), rtol=0.02, atol=0.02)
    with raises_code('unknown-dtype'):
        wrap(model, dtype='int8')


def test_gpu_without_bfloat16_raises(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_bf16_supported', lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, 'get_device_name', lambda: 'Tesla V100')
    with FakeTensorMode(), raises_code('no-bfloat16', 'Tesla V100'):
        wrap(nn.Linear(6, 2, device='cuda'), dtype='bfloat16')


def test_gradient_norm_is_logged_without_a_wait():
    model, runner = network(), SimpleNamespace(message_hub=MessageHub.get_instance('clipped'))
    model(batches(1)[0]).square().mean().backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    model.zero_grad()
    runner.optim_wrapper = wrap(model, clip_grad=dict(max_norm=norm.item() / 7))
    train(model, runner.optim_wrapper, batches(1))
    AsyncRuntimeInfoHook().after_train_iter(runner)
    torch.testing.assert_close(runner.optim_wrapper.gradient_norm, norm)
    assert runner.message_hub.get_scalar('train/grad_norm').current() == pytest.approx(norm.item())


def test_step_skipped_by_the_scaler_moves_nothing():
    """The scaler skips a step if images have infinite values, and also if the loss is finite but its scaled gradients
    overflow.
    """
    model = network()
    wrapper = wrap(model, dtype='float16')
    for scale, batch, finite in ((16.0, torch.full((4, 6), float('inf')), False), (3e38, batches(1)[0], True)):
        wrapper.loss_scaler = torch.amp.GradScaler('cpu', init_scale=scale)
        before = weights(model)
        train(model, wrapper, [batch])
        assert wrapper.finite == finite and not wrapper.stepped and torch.equal(weights(model), before)
    wrapper.loss_scaler = torch.amp.GradScaler('cpu', init_scale=8.0)
    train(model, wrapper, batches(1))
    assert wrapper.stepped and not torch.equal(weights(model), before)


@pytest.mark.parametrize('dtype', [None, 'bfloat16', 'float16'])
def test_infinite_loss_with_finite_gradients_moves_nothing(dtype):
    model = network()
    wrapper = wrap(model, dtype=dtype)
    before = weights(model)
    wrapper.update_params(model(batches(1)[0]).sum() + float('inf'))
    assert not wrapper.finite and not wrapper.stepped and torch.equal(weights(model), before)


def test_overflow_at_first_step_gives_zero_momentum():
    """torch leaves momentum buffers uninitialized (NaN in this test), and a skipped step does not fill them."""

    def after(scales: list[float]) -> torch.Tensor:
        model = network()
        wrapper = AutocastOptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True), 'float16')
        for scale, batch in zip(scales, [batches(1)[0], *batches(2)][-len(scales) :]):
            wrapper.loss_scaler = torch.amp.GradScaler('cpu', init_scale=scale)
            train(model, wrapper, [batch])
        return weights(model)

    # This setting makes torch fill uninitialized memory with NaN.
    torch.use_deterministic_algorithms(True)
    try:
        torch.testing.assert_close(after([3e38, 8.0, 8.0]), after([8.0, 8.0]))
    finally:
        torch.use_deterministic_algorithms(False)


def test_loaded_momentum_has_the_layout_of_its_weight():
    """In checkpoints of ZeRO, or of runs in another memory layout, momenta have other strides.

    A fused step would ignore the strides.
    """

    def run(state: dict | None, layout: torch.memory_format, fused: bool) -> tuple[dict, torch.Tensor]:
        torch.manual_seed(0)
        conv = nn.Conv2d(4, 6, 3).to(memory_format=layout)
        wrapper = AutocastOptimWrapper(torch.optim.SGD(conv.parameters(), lr=0.1, momentum=0.9, fused=fused))
        if state is not None:
            conv.load_state_dict(state['weights'])
            wrapper.load_state_dict(state['optimizer'])
            assert wrapper.optimizer.state[conv.weight]['momentum_buffer'].stride() == conv.weight.stride()
        for step in range(2):
            images = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(step + 10 * (state is not None)))
            wrapper.update_params(conv(images).square().mean())
        return dict(weights=conv.state_dict(), optimizer=wrapper.state_dict()), conv.weight.detach().clone()

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
    exact = wrap(network())
    state = exact.state_dict()
    assert state['loss_scaler'] == {}
    scaled = wrap(network(), dtype='float16')
    scale = scaled.loss_scaler.get_scale()
    scaled.load_state_dict(state)
    assert scaled.loss_scaler.get_scale() == scale
