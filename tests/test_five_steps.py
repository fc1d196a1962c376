"""Five training steps of each framework equal those of a plain PyTorch loop that shares no code with the package."""

import math
import random
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
import torchvision
from mmengine.hooks import Hook
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from mmairl.engine import run
from mmairl.models import siamese

WIDTH = 8


def narrow_resnet() -> nn.Module:
    """Return torchvision's ResNet-18 with an eighth of its channels."""
    net = torchvision.models.resnet18()
    net.inplanes = WIDTH
    net.fc = nn.Identity()
    net.conv1 = nn.Conv2d(3, WIDTH, 7, stride=2, padding=3, bias=False)
    net.bn1 = nn.BatchNorm2d(WIDTH)
    for stage in range(4):
        blocks = net._make_layer(BasicBlock, WIDTH * 2**stage, 2, stride=1 if stage == 0 else 2)
        setattr(net, f'layer{stage + 1}', blocks)
    return net


@dataclass
class Plain:
    """A framework as the papers describe it, with torchvision's ResNet and every update written out."""

    state: dict[str, Tensor]
    predictor: bool = True
    teacher_predictor: bool = False
    symmetric: bool = True
    negatives: bool = True
    lars: bool = False
    ascending: bool = True
    release: bool = False  # BYOL's released code differs from its paper
    temperature: float = 0.2
    bn: bool = True
    parts: int = 1
    bias: bool = True
    linear: bool = False
    orders: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.student = self.build(self.state, '')
        self.teacher = self.build(self.state, 'teacher.')
        self.queue = list(self.state['queue.vectors']) if self.negatives else []
        self.speed = [torch.zeros_like(p) for p in self.student.parameters()]

    def build(self, state: dict[str, Tensor], prefix: str) -> nn.ModuleDict:
        net = nn.ModuleDict({'backbone': narrow_resnet(), 'projector': self.mlp(8 * WIDTH)})
        if self.teacher_predictor if prefix else self.predictor:
            net['predictor'] = self.mlp(16)
        weights = {
            k.removeprefix(prefix).replace('.mlp.', '.'): v
            for k, v in state.items()
            if k.startswith(prefix)
        }
        net.load_state_dict({k: v for k, v in weights.items() if k.split('.')[0] in net})
        return net.train()

    def mlp(self, width: int) -> nn.Sequential:
        if self.linear:
            return nn.Sequential(nn.Linear(width, 16))
        middle = [nn.BatchNorm1d(64)] if self.bn else []
        return nn.Sequential(
            nn.Linear(width, 64), *middle, nn.ReLU(), nn.Linear(64, 16, bias=self.bias)
        )

    def embed(self, net: nn.ModuleDict, images: Tensor) -> Tensor:
        """Return normalized outputs. Each part of the batch has its own batch-norm statistics, as if it were on its own GPU."""
        parts = [net['projector'](net['backbone'](part)) for part in images.chunk(self.parts)]
        z = torch.cat(parts)
        return F.normalize(net['predictor'](z) if 'predictor' in net else z, dim=1)

    def teach(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            if not self.orders:
                return self.embed(self.teacher, images)
            order = self.orders.pop(0)
            keys = torch.empty(len(images), 16)
            keys[order] = self.embed(self.teacher, images[order])
            return keys

    def direction(self, query: Tensor, key: Tensor) -> Tensor:
        if not self.negatives:
            return ((query - key) ** 2).sum(1).mean()
        logits = torch.cat(
            [(query * key).sum(1, keepdim=True), query @ torch.stack(self.queue).T], dim=1
        )
        return F.cross_entropy(logits / self.temperature, torch.zeros(len(query), dtype=torch.long))

    def step(self, v1: Tensor, v2: Tensor, k: int, steps: int, peak: float) -> float:
        lr = peak * (1 + math.cos(math.pi * k / steps)) / 2
        count = k if self.release else k + 1
        if self.symmetric:
            k1 = self.teach(v1)
            k2 = self.teach(v2)
            loss = self.direction(self.embed(self.student, v1), k2) + self.direction(
                self.embed(self.student, v2), k1
            )
            fresh = random.Random(f'3:{k}').choice([k1, k2])
        else:
            fresh = self.teach(v2)
            loss = self.direction(self.embed(self.student, v1), fresh)
        names, parameters = zip(*self.student.named_parameters())
        for name, p, g, v in zip(
            names, parameters, torch.autograd.grad(loss, parameters), self.speed
        ):
            (self.lars_update if self.lars else self.sgd_update)(name, p.data, g, v, lr)
        start = 0.004 if self.release else 0.01
        momentum = (
            1 - start * (1 + math.cos(math.pi * count / steps)) / 2 if self.ascending else 0.999
        )
        for name, t in self.teacher.named_parameters():
            t.data.copy_(momentum * t.data + (1 - momentum) * self.student.get_parameter(name).data)
        for key in fresh if self.negatives else []:
            self.queue = [*self.queue[1:], key]
        return loss.item()

    def sgd_update(self, name: str, p: Tensor, g: Tensor, v: Tensor, lr: float) -> None:
        v.copy_(0.9 * v + g + 1e-4 * p)
        p -= lr * v

    def lars_update(self, name: str, p: Tensor, g: Tensor, v: Tensor, lr: float) -> None:
        local = 1.0
        decay = 0.0
        # Biases and batch-norm weights, which have one dimension, get no decay and a local rate of 1.
        if p.ndim > 1:
            decay = 1.5e-6 if self.release else 1e-6
            w = math.sqrt((p * p).sum())
            d = math.sqrt((g * g).sum())
            local = 0.001 * w / (d + decay * w) if w and d else 1.0
        # BYOL's released code applies the learning rate outside the momentum buffer.
        if self.release:
            v.copy_(0.9 * v + local * (g + decay * p))
            p -= lr * v
        else:
            v.copy_(0.9 * v + lr * local * (g + decay * p))
            p -= v


FRAMEWORKS = {
    'mocov1': dict(
        predictor=False, symmetric=False, ascending=False, linear=True, parts=2, temperature=0.07
    ),
    'mocov2': dict(predictor=False, symmetric=False, ascending=False, bn=False, parts=2),
    'mocov2_syncbn': dict(predictor=False, symmetric=False, ascending=False),
    'mocov2_syncbn_predictor': dict(symmetric=False, ascending=False),
    'mocov2_syncbn_predictor_momentum': dict(symmetric=False),
    'mocov2plus': dict(),
    'smocov2plus': dict(teacher_predictor=True, bias=False),
    'byol': dict(negatives=False),
    'mocov2plus_lars': dict(lars=True),
    'byol_lars': dict(lars=True, negatives=False),
    'byol_release': dict(lars=True, negatives=False, bias=False, release=True),
}
FILES = {'byol_release': 'byol_variants/byol_release_r50_1000e.py'}
CASES = [(name, 'float64') for name in FRAMEWORKS] + [
    ('mocov2plus', 'float32'),
    ('byol_lars', 'float32'),
]
# The tests of these frameworks are marked as slow, because the other cases cover all their parts.
BETWEEN = ('mocov2_syncbn', 'mocov2_syncbn_predictor')
# With noise images in batches of 8 and the recipe's learning rate, rounding errors in float32 grow
# about a hundredfold per step. Therefore, float32 runs use a small fraction of that rate.
TOLERANCE = {'float32': 1e-5, 'float64': 1e-9}
SLOWER = {'float32': 0.01, 'float64': 1.0}


@pytest.mark.parametrize(
    'name,dtype',
    [pytest.param(*case, marks=pytest.mark.slow if case[0] in BETWEEN else ()) for case in CASES],
)
def test_five_steps_equal_the_plain_loop(toy_config, monkeypatch, name, dtype):
    steps = 5
    batch = 8
    tolerance = TOLERANCE[dtype]
    cfg = toy_config(
        FILES.get(name, f'{name}_r50_200e.py'), steps=steps, batch=batch, dtype=dtype, width=WIDTH
    )
    # MoCo v1's low temperature makes rounding errors grow faster.
    cfg.optim_wrapper.optimizer.lr *= SLOWER[dtype] * (0.1 if name == 'mocov1' else 1)
    cfg.train_dataloader.dataset.size = 16
    cfg.default_hooks.checkpoint.update(interval=100, save_last=False)
    if cfg.model.backbone.norm_cfg.type == 'SplitBN':
        cfg.model.backbone.norm_cfg.replicas = 2
    default = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        runner, start, losses, orders = run_recording(cfg, monkeypatch)
        plain = Plain(start, **FRAMEWORKS[name], orders=orders)
        for k in range(steps):
            v1, v2 = runner.train_dataloader.dataset.dataset.images[
                k * batch : (k + 1) * batch
            ].unbind(1)
            loss = plain.step(v1, v2, k, steps, cfg.optim_wrapper.optimizer.lr)
            assert losses[k] == pytest.approx(loss, rel=tolerance)
        trained = runner.model.state_dict()
        for prefix, net in (('', plain.student), ('teacher.', plain.teacher)):
            ours = plain.build(trained, prefix).state_dict()
            for key, value in net.state_dict().items():
                # With several parts, mmairl's running statistics are averages over the parts. The
                # plain loop keeps those of the last part.
                if plain.parts == 1 or ('running' not in key and 'tracked' not in key):
                    torch.testing.assert_close(
                        ours[key], value, atol=tolerance, rtol=tolerance, msg=f'{prefix}{key}'
                    )
        assert not torch.equal(trained['backbone.conv1.weight'], start['backbone.conv1.weight'])
    finally:
        torch.set_default_dtype(default)
    # 40 keys went through a queue of 20, so the oldest key is at `position`.
    if plain.negatives:
        queue = runner.model.queue
        ours = queue.vectors.roll(-queue.position, 0)
        torch.testing.assert_close(ours, torch.stack(plain.queue), atol=tolerance, rtol=0)


def run_recording(cfg, monkeypatch) -> tuple:
    """Train, and record the initial weights, the loss of each step, and ShuffleBN's permutations."""
    start = {}
    losses = []
    orders = []
    shuffle = siamese.shuffle

    def recorded(images: Tensor) -> tuple[Tensor, Tensor]:
        shuffled, order = shuffle(images)
        orders.append(order)
        return shuffled, order

    class Record(Hook):
        priority = 'LOWEST'

        def before_train(self, runner) -> None:
            start.update({k: v.clone() for k, v in runner.model.state_dict().items()})

        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
            losses.append(outputs['loss'].item())

    monkeypatch.setattr(siamese, 'shuffle', recorded)
    return run.train(cfg, hooks=[Record()]), start, losses, orders
