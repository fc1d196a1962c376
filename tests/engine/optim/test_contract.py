"""Optimizers that implement `step` themselves fulfill the contract of torch.optim.Optimizer."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mmairl.registry import OPTIMIZERS

SETTINGS = {
    'LARS': dict(lr=0.5, momentum=0.9, weight_decay=0.01, eta=0.1),
    'HeadSGD': dict(lr=0.1, rates=[1.0, 0.1], decays=[0.0, 0.01], nesterov=True),
}


@pytest.fixture(params=SETTINGS)
def kind(request) -> str:
    return request.param


def build(kind: str, params: object, **changes: object) -> Optimizer:
    """Build an optimizer of this kind directly from its class, as other libraries do."""
    return OPTIMIZERS.get(kind)(params, **{**SETTINGS[kind], **changes})


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 4))


def loss_of(model: nn.Module, seed: int = 1) -> Tensor:
    images = torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))
    return model(images).square().mean()


def train(model: nn.Module, optimizer: Optimizer, steps: int, first: int = 1) -> None:
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([param.detach().flatten() for param in model.parameters()])


def held(optimizer: Optimizer) -> set[Tensor]:
    return {param for group in optimizer.param_groups for param in group['params']}


GROUPS = {
    'a generator': lambda model: model.parameters(),
    'a list': lambda model: list(model.parameters()),
    'groups of generators': lambda model: [
        dict(params=part.parameters()) for part in (model[:2], model[2:])
    ],
    'a generator of groups': lambda model: (dict(params=param) for param in model.parameters()),
    'names': lambda model: model.named_parameters(),
}


@pytest.mark.parametrize('form', GROUPS)
def test_every_form_of_parameters_trains_the_same(kind, form):
    model, listed = network(), network()
    optimizer = build(kind, GROUPS[form](model))
    assert held(optimizer) == set(model.parameters())
    train(model, optimizer, 3)
    train(listed, build(kind, list(listed.parameters())), 3)
    assert torch.equal(weights(model), weights(listed))
    assert all(
        not torch.equal(new, old) for new, old in zip(model.parameters(), network().parameters())
    )


def test_names_stay_with_their_parameters(kind):
    model = network()
    optimizer = build(kind, model.named_parameters())
    names_by_kind = {}
    for group in optimizer.param_groups:
        names_by_kind.update(zip(group['param_names'], group['params'], strict=True))
    assert names_by_kind == dict(model.named_parameters())
    names = [
        name for group in optimizer.state_dict()['param_groups'] for name in group['param_names']
    ]
    assert sorted(names) == sorted(names_by_kind)


def test_closure_has_gradients_and_its_loss_returns(kind):
    model, plain = network(), network()
    optimizer, calls = build(kind, model.parameters()), []

    def closure() -> Tensor:
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    with torch.no_grad():
        loss = optimizer.step(closure)
    assert calls == [True] and loss.item() == loss_of(network()).item()
    train(plain, build(kind, plain.parameters()), 1)
    assert torch.equal(weights(model), weights(plain))
    assert optimizer.step() is None


def test_group_added_after_a_step_trains(kind):
    model = network()
    optimizer = build(kind, model[0].parameters())
    train(model, optimizer, 1)
    groups = len(optimizer.param_groups)
    optimizer.add_param_group(dict(params=model[3].parameters(), lr=0.25))
    assert held(optimizer) == {*model[0].parameters(), *model[3].parameters()}
    assert {group['lr'] for group in optimizer.param_groups[groups:]} == {0.25}
    before = weights(model[3])
    train(model, optimizer, 1, first=2)
    assert (weights(model[3]) != before).all()


def through_state_dict(
    kind: str, model: nn.Module, optimizer: Optimizer
) -> tuple[nn.Module, Optimizer]:
    fresh = network()
    fresh.load_state_dict(model.state_dict())
    other = build(kind, fresh.parameters(), lr=SETTINGS[kind]['lr'] / 3)
    other.load_state_dict(pickle.loads(pickle.dumps(optimizer.state_dict())))
    return fresh, other


COPIES = {
    'state dict': through_state_dict,
    'deepcopy': lambda kind, model, optimizer: copy.deepcopy((model, optimizer)),
    'pickle': lambda kind, model, optimizer: pickle.loads(pickle.dumps((model, optimizer))),
}


@pytest.mark.parametrize('way', COPIES)
@pytest.mark.parametrize('steps', [0, 3])
def test_copied_optimizer_trains_as_the_original(kind, way, steps):
    model = network()
    optimizer = build(kind, model.parameters())
    train(model, optimizer, steps)
    other, copied = COPIES[way](kind, model, optimizer)
    assert held(copied) == set(other.parameters())
    train(model, optimizer, 3, first=10)
    train(other, copied, 3, first=10)
    assert torch.equal(weights(model), weights(other))
    assert [group['lr'] for group in copied.param_groups] == [
        group['lr'] for group in optimizer.param_groups
    ]
