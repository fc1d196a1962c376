"""EpochBatchNormHook derives the decay of batch norm from the length of an epoch.

PreciseBNHook sets statistics to means over batches.
"""

from types import SimpleNamespace

import pytest
import torch
from mmengine.model import BaseDataPreprocessor, BaseModel
from mmengine.optim import OptimWrapper
from mmengine.runner import EpochBasedTrainLoop
from torch import nn

from mmairl.engine.hooks import precise_bn
from mmairl.engine.hooks.precise_bn import EpochBatchNormHook, PreciseBNHook
from mmairl.models.norm import SyncBN


def test_epoch_length_sets_batch_norm_decay():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.BatchNorm2d(4)))
    for steps, decay in ((50, 0.9), (100, 0.9), (400, 1 - 10 / 400)):
        EpochBatchNormHook().before_train(
            SimpleNamespace(model=model, train_dataloader=range(steps))
        )
        assert [
            1 - m.momentum for m in model.modules() if isinstance(m, nn.BatchNorm2d)
        ] == pytest.approx([decay] * 2)


class Detector(BaseModel):
    """A model with one norm. Its forward pass requires `mode='loss'`, training mode and disabled gradients."""

    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__(BaseDataPreprocessor())
        self.norm = norm(4)

    def forward(self, inputs: torch.Tensor, mode: str) -> dict:
        assert mode == 'loss' and self.training and not torch.is_grad_enabled()
        return dict(loss=self.norm(inputs).mean())


@pytest.mark.parametrize('norm', [nn.BatchNorm2d, SyncBN])
def test_statistics_are_the_mean_over_batches(norm, monkeypatch):
    model = Detector(norm).double().train()
    model.norm.running_mean.fill_(100.0)
    model.norm.running_var.fill_(1e6)
    batches = [
        torch.randn(size, 4, 3, 3, dtype=torch.float64) * size + size for size in (2, 3, 5, 4)
    ]
    monkeypatch.setattr(
        precise_bn, '_second_loader', lambda runner: [dict(inputs=batch) for batch in batches]
    )
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    PreciseBNHook().measure(SimpleNamespace(model=model, optim_wrapper=wrapper))
    means = torch.stack([batch.mean(dim=(0, 2, 3)) for batch in batches])
    variances = torch.stack([batch.var(dim=(0, 2, 3), unbiased=True) for batch in batches])
    torch.testing.assert_close(model.norm.running_mean, means.mean(dim=0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        model.norm.running_var, variances.mean(dim=0), rtol=1e-12, atol=1e-12
    )
    assert model.norm.momentum == 0.1
    assert model.norm.weight.grad is None and torch.equal(
        model.norm.weight, torch.ones(4, dtype=torch.float64)
    )


@pytest.mark.parametrize('by_epoch, measured', [(True, [5, 11]), (False, [1, 3, 5, 7, 9, 11])])
def test_statistics_are_measured_before_evaluation(by_epoch, measured):
    """Train two epochs of six iterations. Validate after each epoch, or after every second iteration."""
    loop = EpochBasedTrainLoop.__new__(EpochBasedTrainLoop) if by_epoch else SimpleNamespace()
    loop.val_interval, loop.dataloader = (1 if by_epoch else 2), range(6)
    hook, iterations = PreciseBNHook(), []
    hook.measure = lambda runner: iterations.append(runner.iter)
    for iteration in range(12):
        hook.after_train_iter(
            SimpleNamespace(train_loop=loop, val_loop=object(), iter=iteration, max_iters=12)
        )
    assert iterations == measured
