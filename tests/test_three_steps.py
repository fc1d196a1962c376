"""Three whole training steps of the real runner against a plain PyTorch loop that shares no code with it."""

import math
import random

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from mmairl.engine import launch


class PlainMoCoV2Plus:
    """MoCo v2+ as the paper's text says it, on torchvision's ResNet, with every update written out."""

    def __init__(self, state: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
        self.student, self.teacher = (self.build(state, prefix).to(dtype) for prefix in ('', 'teacher.'))
        self.queue = list(state['queue.vectors'].to(dtype))
        self.speed = [torch.zeros_like(p) for p in self.student.parameters()]

    @staticmethod
    def build(state: dict[str, torch.Tensor], prefix: str) -> nn.ModuleDict:
        backbone = torchvision.models.resnet18()
        backbone.fc = nn.Identity()
        net = nn.ModuleDict({'backbone': backbone, 'projector': PlainMoCoV2Plus.mlp(512)})
        if not prefix:
            net['predictor'] = PlainMoCoV2Plus.mlp(16)
        own = {k.removeprefix(prefix).replace('.mlp.', '.'): v for k, v in state.items() if k.startswith(prefix)}
        net.load_state_dict({k: v for k, v in own.items() if k.split('.')[0] in net})
        return net.train()

    @staticmethod
    def mlp(width: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(width, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))

    def direction(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        bank = torch.stack(self.queue)
        logits = torch.cat([(query * key).sum(1, keepdim=True), query @ bank.T], dim=1) / 0.2
        return F.cross_entropy(logits, torch.zeros(len(query), dtype=torch.long))

    def step(self, v1: torch.Tensor, v2: torch.Tensor, lr: float, momentum: float, view: int) -> float:
        with torch.no_grad():
            k1, k2 = (F.normalize(self.teacher['projector'](self.teacher['backbone'](v)), dim=1) for v in (v1, v2))
        embed = nn.Sequential(self.student['backbone'], self.student['projector'], self.student['predictor'])
        q1, q2 = F.normalize(embed(v1), dim=1), F.normalize(embed(v2), dim=1)
        loss = self.direction(q1, k2) + self.direction(q2, k1)
        parameters = list(self.student.parameters())
        for p, g, v in zip(parameters, torch.autograd.grad(loss, parameters), self.speed):
            v.copy_(0.9 * v + g + 1e-4 * p.detach())
            p.data -= lr * v
        averaged = [p for part in ('backbone', 'projector') for p in self.student[part].parameters()]
        for t, s in zip(self.teacher.parameters(), averaged):
            t.data.copy_(momentum * t.data + (1 - momentum) * s.data)
        for key in (k1, k2)[view]:
            self.queue = [*self.queue[1:], key]
        return loss.item()


# On noise images in batches of 8, float32 rounding grows about a hundredfold a step at the recipe's rate (the loss of
# step 3 differs by 2e-4); at a tenth of it the comparison sees the arithmetic. Float64 runs at the rate itself.
@pytest.mark.parametrize('dtype,peak,tolerance', [('float32', 1e-4, 1e-5), ('float64', 0.03 * 8 / 256, 1e-10)])
def test_loss_weights_teacher_and_queue_equal_the_plain_loop(toy_config, dtype, peak, tolerance):
    steps, batch = 3, 8
    cfg = toy_config(steps=steps, batch=batch, dtype=dtype)
    cfg.optim_wrapper.optimizer.lr = peak
    kind = getattr(torch, dtype)
    default = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        runner, start, losses = run_recording(cfg)
        plain = PlainMoCoV2Plus(start, kind)
        for k in range(steps):
            v1, v2 = runner.train_dataloader.dataset.images[k * batch : (k + 1) * batch].unbind(1)
            lr = peak * (1 + math.cos(math.pi * k / steps)) / 2
            momentum = 1 - 0.01 * (1 + math.cos(math.pi * (k + 1) / steps)) / 2
            view = random.Random(f'3:{k}').choice([0, 1])
            assert plain.step(v1, v2, lr, momentum, view) == pytest.approx(losses[k], rel=tolerance)
        trained = runner.model.state_dict()
        for prefix, net in (('', plain.student), ('teacher.', plain.teacher)):
            for key, value in PlainMoCoV2Plus.build(trained, prefix).state_dict().items():
                torch.testing.assert_close(value, net.state_dict()[key], atol=tolerance, rtol=tolerance)
    finally:
        torch.set_default_dtype(default)
    # 24 keys went through a queue of 20: it wrapped, and its oldest key is at the position
    queue = runner.model.queue
    assert queue.position == 24 % 20
    torch.testing.assert_close(queue.vectors.roll(-queue.position, 0), torch.stack(plain.queue), atol=tolerance, rtol=0)


def run_recording(cfg) -> tuple:
    """Train, keeping the weights as they were before the first step and the loss of each step."""
    from mmengine.hooks import Hook

    start, losses = {}, []

    class Record(Hook):
        def before_train(self, runner) -> None:
            start.update({k: v.clone() for k, v in runner.model.state_dict().items()})

        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
            losses.append(outputs['loss'].item())

    launch.share_batch(cfg, 1)
    runner = launch.build(cfg)
    runner.register_hook(Record(), 'LOWEST')
    runner.train()
    return runner, start, losses
