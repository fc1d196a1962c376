"""Batch norm of fine-tuning: the decay follows the length of an epoch; precise statistics are the batches' plain mean."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.model import BaseDataPreprocessor, BaseModel
from mmengine.optim import OptimWrapper
from torch import nn

from mmairl.hooks import batchnorm
from mmairl.hooks.batchnorm import EpochBatchNormHook, PreciseBNHook
from mmairl.models.batchnorm import SyncBN


def test_decay_is_the_larger_of_one_minus_ten_steps_and_nine_tenths():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.BatchNorm2d(4)))
    for steps, decay in ((50, 0.9), (100, 0.9), (400, 1 - 10 / 400)):
        EpochBatchNormHook().before_train(SimpleNamespace(model=model, train_dataloader=range(steps)))
        assert [1 - m.momentum for m in model.modules() if isinstance(m, nn.BatchNorm2d)] == pytest.approx([decay] * 2)


class Detector(BaseModel):
    """One norm; its loss forward, unlike its others, is what it is trained by."""

    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__(BaseDataPreprocessor())
        self.norm = norm(4)

    def forward(self, inputs: torch.Tensor, mode: str) -> dict:
        assert mode == 'loss' and self.training and not torch.is_grad_enabled()
        return dict(loss=self.norm(inputs).mean())


@pytest.mark.parametrize('norm', [nn.BatchNorm2d, SyncBN])
def test_statistics_are_the_mean_over_batches_whatever_they_were(norm, monkeypatch):
    model = Detector(norm).double().train()
    model.norm.running_mean.fill_(100.0)
    model.norm.running_var.fill_(1e6)
    batches = [torch.randn(size, 4, 3, 3, dtype=torch.float64) * size + size for size in (2, 3, 5, 4)]
    monkeypatch.setattr(batchnorm, '_loader_beside', lambda runner: [dict(inputs=batch) for batch in batches])
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    PreciseBNHook().measure(SimpleNamespace(model=model, optim_wrapper=wrapper))
    means = torch.stack([batch.mean(dim=(0, 2, 3)) for batch in batches])
    variances = torch.stack([batch.var(dim=(0, 2, 3), unbiased=True) for batch in batches])
    torch.testing.assert_close(model.norm.running_mean, means.mean(dim=0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model.norm.running_var, variances.mean(dim=0), rtol=1e-12, atol=1e-12)
    assert model.norm.momentum == 0.1
    assert model.norm.weight.grad is None and torch.equal(model.norm.weight, torch.ones(4, dtype=torch.float64))
