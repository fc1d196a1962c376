"""Speed settings change nothing but rounding, and no step waits for the device."""

import copy
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.logging import MessageHub
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmairl.engine.hooks.after_step import MomentumHook, QueueHook
from mmairl.engine.hooks.progress import AsyncRuntimeInfoHook
from mmairl.engine.optim.autocast import AutocastOptimWrapper
from mmairl.engine.optim.lars import LARS
from mmairl.engine.runner import Runner
from mmairl.engine.speed import make_fast, set_fast_keys
from mmairl.registry import MODELS


def test_default_settings_reach_model_data_and_optimizer(toy_config):
    cfg = toy_config(width=8)
    cfg.model.data_preprocessor = dict(type='ViewPreprocessor', mean=(0.5,) * 3, std=(0.25,) * 3)
    runner = Runner.from_cfg(cfg)
    assert cfg.fast == dict(precision='tf32', channels_last=True, fused=True)
    assert runner.optim_wrapper.optimizer.defaults['fused']
    runner._init_model_weights()
    assert runner.model.backbone.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert runner.model.data_preprocessor.layout is torch.channels_last


@pytest.mark.parametrize('dtype,fused', [('float16', False), ('bfloat16', True)])
def test_precision_sets_the_dtype_of_the_wrapper(dtype, fused):
    cfg = ConfigDict(
        fast=dict(precision=dtype, fused=True), optim_wrapper=dict(optimizer=dict(type='SGD'))
    )
    set_fast_keys(cfg)
    assert (
        cfg.optim_wrapper.dtype == dtype
        and cfg.optim_wrapper.optimizer.get('fused', False) == fused
    )


@pytest.mark.parametrize(
    'fast', [dict(checkpointing=True), dict(compile=dict(backend='eager'))], ids=str
)
def test_fast_vit_has_the_same_gradients(fast):
    arch = dict(embed_dims=32, num_layers=2, num_heads=2, feedforward_channels=64)
    torch.manual_seed(0)
    backbone = MODELS.build(
        dict(type='mmpretrain.VisionTransformer', arch=arch, img_size=16, patch_size=8)
    )
    plain = nn.ModuleDict(dict(backbone=backbone))
    fast_model = make_fast(copy.deepcopy(plain), fast)
    images = torch.randn(2, 3, 16, 16)
    for model in (plain, fast_model):
        model.backbone(images)[-1].square().mean().backward()
    for one, other in zip(plain.parameters(), fast_model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def on_fake_gpu(model: nn.Module, mode: FakeTensorMode) -> None:
    """Replace parameters and buffers by fake tensors on a GPU."""
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            fake = torch.empty_like(mode.from_tensor(weight.detach()), device='cuda')
            setattr(module, name, nn.Parameter(fake, weight.requires_grad))
        for name, value in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty_like(mode.from_tensor(value), device='cuda'))


class RealOnCPU(TorchDispatchMode):
    """Compute operations on CPU tensors, such as the masks of patches, whose results the host knows without waiting."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        if any(
            isinstance(leaf, FakeTensor) or 'cuda' in str(leaf)
            for leaf in leaves
            if not is_real(leaf)
        ):
            return func(*args, **kwargs)
        with unset_fake_temporarily():
            return func(*args, **kwargs)


def is_real(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor)


STEPS = {
    'mocov2plus': ('mocov2plus_r50_200e.py', {}),
    'byol_lars': ('byol_lars_r50_200e.py', {}),
    'ibot': ('methods/ibot_vit_s16_800e.py', {}),
    'dinov2': ('methods/dinov2_vit_s16_800e.py', {}),
    'bfloat16 and clipping': (
        'byol_r50_200e.py',
        {'optim_wrapper.dtype': 'bfloat16', 'optim_wrapper.clip_grad': dict(max_norm=1.0)},
    ),
}


@pytest.mark.parametrize('case', STEPS)
def test_step_never_waits_for_the_device(toy_config, monkeypatch, case):
    """Under FakeTensorMode with the device cuda, an operation raises if its result must be known on the CPU."""
    monkeypatch.setattr(torch.cuda, 'is_bf16_supported', lambda including_emulation: True)
    name, options = STEPS[case]
    cfg = toy_config(name, width=8, **options)
    model = MODELS.build(cfg.model)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, RealOnCPU():
        on_fake_gpu(model, mode)
        settings = dict(cfg.optim_wrapper.optimizer)
        kind = settings.pop('type')
        kind = LARS if kind == 'LARS' else getattr(torch.optim, kind)
        optimizer = kind(model.parameters(), **settings)
        wrapper = AutocastOptimWrapper(
            optimizer, cfg.optim_wrapper.get('dtype'), clip_grad=cfg.optim_wrapper.get('clip_grad')
        )

        def backward(loss: torch.Tensor) -> None:
            # torch's backward pass requires a real GPU.
            for weight in model.parameters():
                weight.grad = torch.empty_like(weight) if weight.requires_grad else None
            wrapper._inner_count += 1

        wrapper.backward = backward
        hub = MessageHub.get_instance(f'waits {case}')
        runner = SimpleNamespace(
            model=model,
            optim_wrapper=wrapper,
            iter=0,
            max_iters=9,
            seed=0,
            message_hub=hub,
            hooks=[],
        )
        hooks = [MomentumHook(), QueueHook(), AsyncRuntimeInfoHook()]
        hooks[1].before_train(runner)
        for runner.iter in range(2):
            views = [torch.randn(4, 3, 32, 32, device='cuda') for _ in range(2)]
            with wrapper.optim_context(model):
                losses = model(views, mode='loss')
            wrapper.update_params(losses['loss'])
            for hook in hooks:
                hook.after_train_iter(runner, batch_idx=0, outputs=dict(losses))
