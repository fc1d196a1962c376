"""Run under torchrun by test_processes: train a toy config and let rank 0 save what came out."""

import sys
from pathlib import Path

import torch
import toy
from mmengine.dist import get_rank, get_world_size

from mmairl.engine import launch
from mmairl.engine.distributed import start_processes
from mmairl.errors import stop_processes
from mmairl.hooks import OnlineProbeHook
from mmairl.models.batchnorm import SyncBN, shuffle, unshuffle
from mmairl.models.gather import gather


def check_shuffle() -> None:
    """ShuffleBN's permutation deals every image to one process, and the way back is exact."""
    own = torch.arange(6) + 6 * get_rank()
    dealt, order = shuffle(own)
    assert gather(dealt).sort().values.equal(torch.arange(6 * get_world_size()))
    assert unshuffle(dealt, order).equal(own)


def check_sync_bn() -> None:
    """Outputs, gradients and running statistics are those of the joined batch; shares may differ, weights may lack."""
    rank, world = get_rank(), get_world_size()
    for rows, affine in (((4, 4), True), ((5, 2), True), ((3, 4), False)):
        rows = rows[:world]
        own = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
        generator = torch.Generator().manual_seed(5)
        joined, slope = (torch.randn(sum(rows), 3, 2, 2, generator=generator) * 3 + 7 for _ in range(2))
        plain, ours = torch.nn.BatchNorm2d(3, affine=affine), SyncBN(3, affine=affine)
        x, part = joined.clone().requires_grad_(), joined[own].clone().requires_grad_()
        expected, found = plain(x), ours(part)
        (expected * slope).sum().backward()
        (found * slope[own]).sum().backward()
        pairs = [(found, expected[own]), (part.grad, x.grad[own]), *zip(ours.buffers(), plain.buffers())]
        for mine, whole in zip(ours.parameters(), plain.parameters()):
            pairs.append((gather(mine.grad[None]).sum(0), whole.grad))
        for one, other in pairs:
            torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


if __name__ == '__main__':
    launcher, out, work_dir, *names = sys.argv[1:]
    launch.register()
    torch.set_default_dtype(torch.float64)
    start_processes(launcher)
    check_shuffle()
    check_sync_bn()
    saved = {}
    for name in names:
        cfg = toy.config(name, f'{work_dir}/{Path(name).stem}', steps=3, batch=8, queue=16, dtype='float64', width=8)
        cfg.default_hooks.checkpoint.interval = 100  # none: what is compared is saved below
        cfg.default_hooks.checkpoint.save_last = False
        if 'terms' in cfg.model.head:  # random directions are a process's own
            cfg.model.head.terms = [term for term in cfg.model.head.terms if term.type != 'BrownianTerm']
        data = {
            part: dict(type='Shapes', split='val', count=count, size=32)
            for part, count in (('train', 49), ('test', 24))
        }
        cfg.custom_hooks = [
            dict(type='OnlineProbeHook', classes=4, lr=0.5),
            dict(type='OnlineKNNHook', interval=1, **data),
        ]
        cfg.model.data_preprocessor = dict(type='ViewPreprocessor', mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
        runner = launch.train(cfg, launcher)
        probe = next(hook.probe for hook in runner.hooks if isinstance(hook, OnlineProbeHook))
        if runner.rank == 0:
            knn = runner.message_hub.get_scalar('train/knn_accuracy').current()
        model = getattr(runner.model, 'module', runner.model)
        saved[name] = dict(
            knn=float(knn) if runner.rank == 0 else None,
            weights=model.state_dict(),
            wrapped=model is not runner.model,
            probe=probe.weight.detach(),
        )
    if runner.rank == 0:
        torch.save(saved, out)
    stop_processes()
