"""Faster steps change neither the method nor the keys of a checkpoint, and stay in float32 where precision matters."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
import torch.nn.functional as F
from harness.errors import raises_code
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from mmairl.data.preprocess import float32_precision
from mmairl.engine import run
from mmairl.engine.checkpoint import load_checkpoint
from mmairl.engine.speed import make_fast, set_fast_keys
from mmairl.models.heads.base import unit
from mmairl.registry import MODELS

CONFIGS = Path(__file__).parents[2] / 'configs'
# This backend traces and differentiates, but needs no C++ compiler.
COMPILED = dict(compile=dict(backend='aot_eager'))


@pytest.fixture
def network(toy_config):
    """Return a function that builds MoCo v2+ at toy size, with the same weights at each call."""
    cfg = toy_config(width=8)
    cfg.model.data_preprocessor = dict(type='ViewPreprocessor', mean=(0.5,) * 3, std=(0.25,) * 3)

    def make() -> nn.Module:
        torch.manual_seed(1)
        model = MODELS.build(cfg.model)
        model.init_weights()
        return model.train()

    return make


def views(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return list(torch.randn(2, 8, 3, 32, 32, generator=torch.Generator().manual_seed(2), dtype=dtype))


def one_step(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the loss, gradients and batch-norm statistics after one forward and backward pass."""
    loss = model(views(), None, mode='loss')['loss']
    loss.backward()
    gradients = {f'gradient of {name}': w.grad for name, w in model.named_parameters() if w.grad is not None}
    return dict(loss=loss.detach(), **gradients, **model.state_dict())


@pytest.mark.parametrize('fast', [dict(channels_last=True), dict(checkpointing=True), COMPILED], ids=str)
def test_fast_step_equals_the_plain_step(network, fast):
    plain, fast_model = network().double(), make_fast(network().double(), fast)
    expected, results = one_step(plain), one_step(fast_model)
    assert list(expected) == list(results)
    for name, tensor in expected.items():
        if isinstance(tensor, torch.Tensor):
            torch.testing.assert_close(results[name], tensor, atol=1e-9, rtol=1e-7, msg=name)


def test_adding_a_hook_recompiles_nothing(network):
    model, seen = make_fast(network(), dict(compile=dict(backend='eager'))), []
    images = views(torch.float32)[0]
    model.backbone(images)
    torch._dynamo.utils.counters.clear()
    handle = model.backbone.register_forward_hook(lambda *_: seen.append(1))
    model.backbone(images)
    handle.remove()
    model.backbone(images)
    assert seen == [1] and torch._dynamo.utils.counters['stats']['unique_graphs'] == 0


def test_each_forward_pass_starts_a_graph_generation(network, monkeypatch):
    """On a GPU, `cudagraph_mark_step_begin` lets the next CUDA graph overwrite earlier outputs.

    A CPU has no CUDA graphs, so the test only counts the calls.
    """
    calls = []
    monkeypatch.setattr(torch.compiler, 'cudagraph_mark_step_begin', lambda: calls.append(1))
    for mode, marks in (('reduce-overhead', 2), ('default', 0)):
        calls.clear()
        model = make_fast(network(), dict(compile=dict(mode=mode)))
        monkeypatch.setattr(model, 'loss', lambda inputs: calls.append('passed') or {'loss': 0})
        for _ in range(2):
            model(views(torch.float32), mode='loss')
        assert calls == ([1, 'passed'] * 2 if marks else ['passed'] * 2)


RESNET = dict(type='mmpretrain.ResNet', norm_cfg=dict(type='SyncBN'))
VIT = dict(embed_dims=64, num_layers=3, num_heads=2, feedforward_channels=128)
PRODUCTS = (torch.conv2d, F.linear, torch._C._nn.linear)


@pytest.mark.parametrize(
    ('backbone', 'width', 'processes', 'eager'),
    [
        (dict(RESNET, depth=18), 512, 1, 2),
        pytest.param(dict(RESNET, depth=101), 2048, 1, 2, marks=pytest.mark.slow),
        (dict(type='mmpretrain.VisionTransformer', arch=VIT, img_size=32, patch_size=16, drop_path_rate=0.1), 64, 1, 0),
        # Each SyncBN ends a graph. Single layers next to a SyncBN (in shortcuts and projectors) are not
        # compiled.
        pytest.param(dict(RESNET, depth=18), 512, 2, 2 + 6 + 6, marks=pytest.mark.slow),
    ],
)
def test_products_of_student_and_teacher_are_compiled(toy_config, backbone, width, processes, eager):
    """In one process, only the convolutions of a ResNet's stems are not compiled, and graphs have no breaks."""
    if processes > 1:
        dist.init_process_group('fake', store=FakeStore(), rank=0, world_size=processes)
    try:
        assert left_eager(toy_config().model, backbone, width) == 2 * eager
        assert bool(torch._dynamo.utils.counters['graph_break']) == (processes > 1)
    finally:
        if processes > 1:
            dist.destroy_process_group()


def left_eager(cfg: dict, backbone: dict, width: int) -> int:
    """Return the number of matrix products that a second step runs without compilation on two views.

    A backend counts the compiled products. It also checks that no shape is dynamic, because torch's compiler fails on
    some dynamic shapes.
    """
    ran: list[int] = []

    def counting(graph: torch.fx.GraphModule, inputs: list) -> Callable:
        values = (node.meta.get('example_value') for node in graph.graph.nodes if node.op == 'placeholder')
        assert not any(isinstance(value, torch.SymInt) for value in values)
        products = sum(node.target in PRODUCTS for node in graph.graph.nodes)
        return lambda *inputs: (ran.append(products), graph.forward(*inputs))[1]

    cfg.backbone, cfg.projector.in_channels = backbone, width
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = make_fast(MODELS.build(cfg).train(), dict(compile=dict(backend=counting)))
    for _ in range(2):
        ran.clear()
        model.loss(views(torch.float32))['loss'].backward()
    # Each of the two views has its own pass.
    return 2 * sum(isinstance(layer, nn.Conv2d | nn.Linear) for layer in model.modules()) - sum(ran)


def test_copy_of_a_fast_network_uses_its_own_weights(network):
    for fast in (COMPILED, dict(checkpointing=True)):
        model = make_fast(network(), fast)
        other = copy.deepcopy(model)
        with torch.no_grad():
            for weight in other.parameters():
                weight.zero_()
        images = views(torch.float32)[0]
        assert other.backbone(images)[0].abs().sum() == 0 and model.backbone(images)[0].abs().sum() > 0


def test_checkpointing_keeps_fewer_tensors(network):
    def held(model: nn.Module) -> int:
        """Return the bytes that autograd keeps for the backward pass of one view through the backbone."""
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.nbytes) or t, lambda t: t):
            model.backbone(views(torch.float32)[0])
        return sum(sizes)

    assert held(make_fast(network(), dict(checkpointing=True))) < 0.5 * held(network())


def test_float32_stays_where_it_matters_under_bfloat16(network):
    model = make_fast(network(), dict(channels_last=True))
    settings = dict(type='LARS', lr=0.1, momentum=0.9)
    wrapper = build_optim_wrapper(model, dict(type='AutocastOptimWrapper', optimizer=settings, dtype='bfloat16'))
    seen = {}
    model.backbone.register_forward_hook(lambda module, inputs, output: seen.update(features=output[0].dtype))
    log = model.train_step(dict(inputs=views(torch.float32), data_samples={}), wrapper)
    model.teacher.follow(model, 0.9)
    model.queue.enqueue(unit(model.keys[0]))
    assert seen == dict(features=torch.bfloat16), 'autocast is not active in the backbone'
    floats = [tensor for tensor in model.state_dict().values() if isinstance(tensor, torch.Tensor)]
    floats = [log['loss'], *(tensor for tensor in floats if tensor.is_floating_point())]
    floats += [w.grad for w in model.parameters() if w.grad is not None]
    floats += [state['momentum_buffer'] for state in wrapper.optimizer.state.values()]
    assert len(floats) > 200 and {tensor.dtype for tensor in floats} == {torch.float32}


def with_fast(name: str, options: dict | None = None, **fast) -> Config:
    cfg = Config.fromfile(CONFIGS / name)
    cfg.merge_from_dict(dict(fast=fast, **(options or {})))
    set_fast_keys(cfg)
    return cfg


def test_fast_run_follows_its_config_and_resumes(toy_config, tmp_path):
    """The runner applies memory layout, bfloat16 and fused SGD, while the keys of checkpoints stay the same."""
    fast = dict(precision='bfloat16', channels_last=True, fused=True, **COMPILED)
    runner = run.train(toy_config(steps=4, width=8, fast=fast))
    model, again = runner.model, dict(resume=True, load_from=f'{runner.work_dir}/iter_2.pth')
    assert model.backbone.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert runner.optim_wrapper.cast_dtype == torch.bfloat16 and runner.optim_wrapper.optimizer.defaults['fused']
    saved = load_checkpoint(f'{runner.work_dir}/iter_2.pth')['state_dict']
    assert list(saved) == list(MODELS.build(toy_config(width=8).model).state_dict())
    resumed = run.train(toy_config(steps=4, width=8, fast=fast, work_dir=str(tmp_path / 'again'), **again))
    for name, tensor in model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor), name


def test_fast_sets_the_keys_of_each_part():
    cfg = with_fast('mocov2plus_r50_200e.py', precision='bfloat16', channels_last=True, fused=True)
    assert cfg.optim_wrapper.dtype == 'bfloat16' and cfg.optim_wrapper.optimizer.fused
    assert cfg.model.data_preprocessor.channels_last
    assert 'fused' not in with_fast('byol_lars_r50_200e.py', fused=True).optim_wrapper.optimizer
    cfg = with_fast('mocov2plus_r50_200e.py', {'optim_wrapper.dtype': 'float16'}, precision='bfloat16')
    assert cfg.optim_wrapper.dtype == 'float16', 'fast.precision replaced the dtype of the config'


@pytest.mark.parametrize(
    ('precision', 'products', 'tf32'),
    [('float32', 'highest', False), ('tf32', 'high', True), (None, 'medium', True)],
)
def test_float32_precision_is_set_and_restored(precision, products, tf32):
    def now() -> tuple[str, bool]:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    before = now()
    try:
        torch.set_float32_matmul_precision('medium')
        torch.backends.cudnn.allow_tf32 = True
        with float32_precision(precision):
            assert now() == (products, tf32)
        assert now() == ('medium', True)
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@pytest.mark.parametrize(
    'code, fast',
    [
        ('unknown-precision', dict(precision='fp8')),
        ('exclusive-options', dict(compile=True, checkpointing=True)),
    ],
)
def test_invalid_fast_raises(code, fast):
    with raises_code(code):
        make_fast(nn.Linear(1, 1), fast)


def test_graphs_reject_accumulation():
    """The CUDA graphs of the next batch would overwrite the accumulated gradients."""
    graphs = dict(mode='reduce-overhead')
    with_fast('mocov2plus_r50_200e.py', compile=graphs)
    accumulated = {'optim_wrapper.accumulative_counts': 2}
    with_fast('mocov2plus_r50_200e.py', accumulated, compile=True)
    with raises_code('graphs-with-accumulation'):
        with_fast('mocov2plus_r50_200e.py', accumulated, compile=graphs)
