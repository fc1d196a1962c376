"""Train toy configs for test_processes.py, in one process or in two, and check batch norm and evaluation over processes.

As a script with the argument FOLDER, this file saves the results in FOLDER/two.pth. With a second argument, `checks`,
the script trains nothing.
"""

import copy
import sys
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from mmengine.dist import all_gather_object, get_rank, get_world_size
from torch.testing import assert_close

from harness import toy
from mmairl.config import load_config
from mmairl.engine import run
from mmairl.engine.distributed import start_processes
from mmairl.evaluation.protocol import evaluate
from mmairl.models.norm import SyncBN, passes, shuffle, unshuffle
from mmairl.models.processes import gather, network_of
from mmairl.signals import stop_processes

# MoCo v2 is missing, because the output of ShuffleBN depends on the number of processes by design.
CASES = {
    'mocov2plus': {'default_hooks.health.interval': 1},
    'byol_lars': {},
    'compile': dict(name='mocov2plus_r50_200e.py', fast=dict(compile=dict(backend='aot_eager'))),
}


def check_shuffle() -> None:
    """ShuffleBN's permutation assigns each image to exactly one process, and undoing the permutation is exact."""
    indices = torch.arange(6) + 6 * get_rank()
    dealt, order = shuffle(indices)
    assert gather(dealt).sort().values.equal(torch.arange(6 * get_world_size()))
    assert unshuffle(dealt, order).equal(indices)


def check_sync_bn() -> None:
    """Outputs, gradients and running statistics equal those of plain batch norm on the joined batch.

    Processes may have unequal shares of the batch, and norms may have no weights.
    """
    rank = get_rank()
    for rows, affine in (((4, 4, 4, 4), True), ((5, 2, 3, 6), True), ((3, 4, 2, 2), False)):
        rows = rows[: get_world_size()]
        share = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
        generator = torch.Generator().manual_seed(5)
        joined, slope = (
            torch.randn(sum(rows), 3, 2, 2, generator=generator) * 3 + 7 for _ in range(2)
        )
        plain = torch.nn.BatchNorm2d(3, affine=affine)
        ours = SyncBN(3, affine=affine)
        x = joined.clone().requires_grad_()
        part = joined[share].clone().requires_grad_()
        expected = plain(x)
        output = ours(part)
        (expected * slope).sum().backward()
        (output * slope[share]).sum().backward()
        pairs = [
            (output, expected[share]),
            (part.grad, x.grad[share]),
            *zip(ours.buffers(), plain.buffers()),
        ]
        for mine, whole in zip(ours.parameters(), plain.parameters()):
            pairs.append((gather(mine.grad[None]).sum(0), whole.grad))
        for one, other in pairs:
            assert_close(one, other, atol=1e-12, rtol=1e-12)


def check_views() -> None:
    """Each view is normalized by its own statistics over the images of all processes."""
    torch.manual_seed(3)
    ours, twin = (
        torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), norm(4), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3), norm(2)
        )
        for norm in (SyncBN, torch.nn.BatchNorm2d)
    )
    twin.load_state_dict(ours.state_dict())
    images = torch.randn(2, 8, 3, 6, 6, generator=torch.Generator().manual_seed(7)) * 2 + 1
    shares = images.chunk(get_world_size(), dim=1)[get_rank()]
    with patch('torch.distributed.all_reduce', wraps=dist.all_reduce) as exchanges:
        (outputs,) = [ours(joined).chunk(2) for _, joined in passes(ours, dict(enumerate(shares)))]
    assert exchanges.call_count == 2, (
        'a norm layer does not need exactly one exchange for both views'
    )
    expected = [twin(view) for view in images]
    for one, other in zip(outputs, expected):
        assert_close(one, other.chunk(get_world_size())[get_rank()], atol=1e-12, rtol=1e-12)
    with patch('torch.distributed.all_reduce', wraps=dist.all_reduce) as exchanges:
        sum(
            (output * (1 + output)).sum() * number for number, output in enumerate(outputs, 1)
        ).backward()
    assert exchanges.call_count == 2
    sum(
        (output * (1 + output)).sum() * number for number, output in enumerate(expected, 1)
    ).backward()
    pairs = [
        (gather(mine.grad[None]).sum(0), whole.grad)
        for mine, whole in zip(ours.parameters(), twin.parameters())
    ]
    for one, other in [*pairs, *zip(ours.buffers(), twin.buffers())]:
        assert_close(one, other, atol=1e-11, rtol=1e-11)


def check_evaluation() -> None:
    """Without a cache, features are in temporary files, which stay until the last process has read them."""
    cfg = load_config('mmairl::demo/mocov2plus_shapes.py')
    cfg.evaluation.train.count = cfg.evaluation.test.count = 60
    load = np.load

    def load_late(*given: object, **named: object) -> np.ndarray:
        time.sleep(0.3 * get_rank())
        return load(*given, **named)

    with patch('numpy.load', load_late):
        scores = evaluate(cfg, 'knn', 'random').scores
    assert len({str(each) for each in all_gather_object(scores)}) == 1


def train(case: str, work_dir: str, launcher: str) -> dict:
    options = copy.deepcopy({'name': f'{case}_r50_200e.py', **CASES[case]})
    cfg = toy.config(
        work_dir=work_dir, steps=3, batch=16, queue=32, dtype='float64', width=8, **options
    )
    # Results are returned, so no checkpoint is needed.
    cfg.default_hooks.checkpoint.update(interval=100, save_last=False)
    cfg.model.data_preprocessor = dict(
        type='ViewPreprocessor', mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)
    )
    runner = run.train(cfg, launcher)
    scalars = {name: history.data[0] for name, history in runner.message_hub.log_scalars.items()}
    # The fraction of time spent on data differs between runs.
    names = {name for name in scalars if name.startswith('health/')} - {'health/data_share'}
    model = network_of(runner)
    return dict(
        weights=dict(model.state_dict()),
        wrapped=model is not runner.model,
        scalars={name: torch.tensor(scalars[name]) for name in names},
    )


if __name__ == '__main__':
    folder = sys.argv[1]
    torch.set_default_dtype(torch.float64)
    start_processes('pytorch')
    check_shuffle()
    check_sync_bn()
    check_views()
    check_evaluation()
    cases = CASES if sys.argv[2:] != ['checks'] else ()
    saved = {case: train(case, f'{folder}/{case}', 'pytorch') for case in cases}
    if get_rank() == 0:
        torch.save(saved, Path(folder) / 'two.pth')
    stop_processes()
