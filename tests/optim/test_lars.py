"""LARS's update: against the rule worked out in plain Python numbers, and its two forms against each other."""

import copy
import math

import pytest
import torch

from mmairl.errors import UserError
from mmairl.optim.lars import LARS, _multi_tensor_lars, _single_tensor_lars

SHAPES = [(7,), (5, 4), (3, 2, 3, 3)]
HYPER = {'momentum': 0.9, 'weight_decay': 0.05, 'eta': 0.001}
FORMS = [_single_tensor_lars, _multi_tensor_lars]


def warm_up_then_cosine(step: int) -> float:
    """A learning rate that changes every step."""
    return 2.0 * (step + 1) / 5 if step < 5 else 1 + math.cos(math.pi * (step - 5) / 15)


def tensors(seed: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """One random tensor per shape."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]


def scalar_lars(w: list[float], grads: list[list[float]], lrs: list[float], adapt: bool) -> list[float]:
    """The facts' formula on a list of Python floats, for one tensor and a sequence of gradients."""
    mu, wd, eta = HYPER['momentum'], HYPER['weight_decay'] if adapt else 0.0, HYPER['eta']
    v = [0.0] * len(w)
    for g, lr in zip(grads, lrs):
        w_norm, g_norm = math.sqrt(math.fsum(x * x for x in w)), math.sqrt(math.fsum(x * x for x in g))
        local = eta * w_norm / (g_norm + wd * w_norm) if adapt and w_norm > 0 and g_norm > 0 else 1.0
        v = [mu * vi + lr * local * (gi + wd * wi) for vi, gi, wi in zip(v, g, w)]
        w = [wi - vi for wi, vi in zip(w, v)]
    return w


def run(form, params, steps, adapt, lr_at=warm_up_then_cosine, dtype=torch.float32):
    """The parameters after some steps of one form, gradients seeded by the step."""
    params, buffers = [p.clone() for p in params], [torch.zeros_like(p) for p in params]
    for step in range(steps):
        form(params, tensors(100 + step, dtype), buffers, lr=lr_at(step), adapt=adapt, **HYPER)
    return params


@pytest.mark.parametrize('adapt', [True, False], ids=['adapted', 'excluded'])
@pytest.mark.parametrize('form', FORMS)
def test_twenty_steps_under_a_changing_lr_equal_the_scalar_rule(form, adapt):
    start, lrs = tensors(0, torch.float64), [warm_up_then_cosine(step) for step in range(20)]
    moved = run(form, start, 20, adapt, dtype=torch.float64)
    for index, (before, after) in enumerate(zip(start, moved)):
        grads = [tensors(100 + step, torch.float64)[index].flatten().tolist() for step in range(20)]
        expected = torch.tensor(scalar_lars(before.flatten().tolist(), grads, lrs, adapt), dtype=torch.float64)
        torch.testing.assert_close(after.flatten(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('adapt', [True, False], ids=['adapted', 'excluded'])
def test_the_two_forms_agree(adapt):
    single, multi = (run(form, tensors(0), 20, adapt) for form in FORMS)
    for one, other in zip(single, multi):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize('form', FORMS)
def test_a_zero_norm_makes_the_local_rate_one(form):
    params, grads = [torch.zeros(3), torch.full((3,), 2.0)], [torch.full((3,), 0.5), torch.zeros(3)]
    form(params, grads, [torch.zeros(3), torch.zeros(3)], lr=0.1, adapt=True, **HYPER)
    torch.testing.assert_close(params[0], torch.full((3,), -0.1 * 0.5))
    torch.testing.assert_close(params[1], torch.full((3,), 2.0 - 0.1 * 0.05 * 2.0))


@pytest.mark.parametrize('form', FORMS)
def test_excluded_parameters_take_the_plain_momentum_step(form):
    params, buffers = [torch.full((2,), 3.0)], [torch.full((2,), 0.2)]
    form(params, [torch.full((2,), 0.5)], buffers, lr=0.1, adapt=False, **HYPER)
    torch.testing.assert_close(params[0], torch.full((2,), 3.0 - (0.9 * 0.2 + 0.1 * 0.5)))


def test_an_excluded_group_equals_torch_sgd_only_while_the_lr_stands_still():
    """The control: torch's SGD keeps the learning rate outside its buffer."""

    def sgd(lr_at):
        params = [p.clone().requires_grad_() for p in tensors(0)]
        optimizer = torch.optim.SGD(params, lr=1.0, momentum=0.9)
        for step in range(10):
            optimizer.param_groups[0]['lr'] = lr_at(step)
            for param, grad in zip(params, tensors(100 + step)):
                param.grad = grad
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in params])

    def lars(lr_at):
        return torch.cat([p.flatten() for p in run(_multi_tensor_lars, tensors(0), 10, False, lr_at)])

    torch.testing.assert_close(lars(lambda step: 0.5), sgd(lambda step: 0.5))
    assert (lars(warm_up_then_cosine) - sgd(warm_up_then_cosine)).abs().max() > 0.1


def test_the_multi_tensor_form_never_reads_the_device(monkeypatch):
    def refuse(*_):
        raise AssertionError('host sync')

    params, grads, buffers = tensors(0), tensors(1), [torch.zeros_like(p) for p in tensors(0)]
    for name in ('item', 'tolist', 'numpy', 'cpu', 'norm', '__bool__', '__float__', '__int__', '__index__'):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    with pytest.raises(AssertionError, match='host sync'):
        _single_tensor_lars(params, grads, buffers, lr=0.1, adapt=True, **HYPER)
    for adapt in (True, False):
        _multi_tensor_lars(params, grads, buffers, lr=0.1, adapt=adapt, **HYPER)


def test_the_optimizer_steps_each_group_by_its_rule_and_skips_what_has_no_gradient():
    adapted, excluded, idle = (torch.nn.Parameter(p) for p in tensors(0))
    groups = [{'params': [adapted, idle]}, {'params': [excluded], 'adapt': False}]
    optimizer = LARS(groups, lr=1.0, **HYPER)
    start, grads = tensors(0), tensors(100)
    adapted.grad, excluded.grad = grads[0], grads[1]
    optimizer.step()
    for param, before, grad, adapt in [(adapted, start[0], grads[0], True), (excluded, start[1], grads[1], False)]:
        expected = scalar_lars(before.flatten().tolist(), [grad.flatten().tolist()], [1.0], adapt)
        torch.testing.assert_close(param.detach().flatten(), torch.tensor(expected))
    assert torch.equal(idle, start[2]) and idle not in optimizer.state


def test_state_dict_round_trips_through_a_weights_only_file(tmp_path):
    def advance(params, optimizer, steps):
        for step in steps:
            optimizer.param_groups[0]['lr'] = warm_up_then_cosine(step)
            for param, grad in zip(params, tensors(100 + step)):
                param.grad = grad
            optimizer.step()

    params = [torch.nn.Parameter(p) for p in tensors(0)]
    optimizer = LARS([{'params': params[1:]}, {'params': params[:1], 'adapt': False}], lr=1.0, **HYPER)
    advance(params, optimizer, range(3))
    torch.save(optimizer.state_dict(), tmp_path / 'state.pth')
    resumed = copy.deepcopy(params)
    other = LARS([{'params': resumed[1:]}, {'params': resumed[:1], 'adapt': False}], lr=9.0, momentum=0.1)
    other.load_state_dict(torch.load(tmp_path / 'state.pth', weights_only=True))
    advance(params, optimizer, range(3, 6))
    advance(resumed, other, range(3, 6))
    assert all(torch.equal(one, two) for one, two in zip(params, resumed))


def test_a_closure_is_evaluated_with_gradients():
    param = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = LARS([param], lr=1.0)

    def closure():
        loss = param.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4
    torch.testing.assert_close(param.detach(), torch.full((2, 2), 1 - 0.001 * 2 / 4 * 2))


@pytest.mark.parametrize('wrong', [{'lr': -1}, {'momentum': 1.0}, {'weight_decay': -1e-6}, {'eta': 0}])
def test_impossible_hyperparameters_are_refused_in_one_sentence(wrong):
    with pytest.raises(UserError, match='LARS needs'):
        LARS([torch.nn.Parameter(torch.ones(2))], **{'lr': 0.1, **wrong})
