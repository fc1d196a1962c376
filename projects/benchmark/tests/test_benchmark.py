"""Test the benchmark's arithmetic, and that the suites run and find differences between mmairl and other libraries."""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

from mmairl.engine.run import register
from projects.benchmark import augment, crops, scaling, step, timing, traffic
from projects.benchmark.__main__ import main
from projects.benchmark.gpu_visit import results
from projects.benchmark.limits import Limits
from projects.benchmark.suites import SUITES
from projects.benchmark.timing import Case, compare

SLOW = ('step', 'crops', 'saving', 'linear', 'analysis', 'loader', 'many_files')


@pytest.mark.parametrize(
    'name', [pytest.param(s, marks=[pytest.mark.slow] if s in SLOW else []) for s in SUITES]
)
def test_each_suite_runs_at_test_size(name):
    register()
    for case in SUITES[name]('cpu', True):
        row = compare(case, rounds=1)
        assert row.ours > 0 and row.peer > 0


def test_sides_alternate_and_ratio_is_of_medians(monkeypatch):
    ran, clock = [], iter([0, 1, 10, 14, 20, 22, 30, 38, 40, 43, 50, 51])
    monkeypatch.setattr(timing.time, 'perf_counter', lambda: float(next(clock)))
    work = dict(images=10, flops=30, moved=2, note='why')
    row = compare(
        Case('a', 'b', lambda: ran.append('A'), lambda: ran.append('B'), **work), rounds=3
    )
    assert ''.join(ran) == 'AB' + 'ABABAB'
    assert (row.ours, row.peer, row.ratio) == (
        2,
        4,
        2,
    )  # medians of 1, 2, 3 s (A) and of 4, 8, 1 s (B)
    assert (row.ours_spread, row.peer_spread, row.images_per_second) == (2, 7, 5)
    # The shortest possible time is max(30 / 60, 2 / 10) = 0.5 s, and the measured time of A is 2 s.
    assert Limits(flops=60, moved=10).reached(row) == 0.25 and row.note == 'why'


@pytest.mark.slow
def test_two_processes_time_every_way():
    seconds = scaling._read([scaling._start(2, steps=1)])
    assert seconds.keys() == scaling.SEVERAL.keys() and all(time > 0 for time in seconds.values())


def test_every_peer_makes_two_views_of_each_image():
    photographs = [augment.photograph(0), augment.photograph(1)]
    ours = [augment.worker_views(augment.VIEW)(augment.tensor(pixels)) for pixels in photographs]
    for name, peer in augment.worker_peers(photographs).items():
        views = peer()
        augment.same_shapes(ours, views)
        assert not any(torch.equal(*pair) for pair in views), name
    with pytest.raises(AssertionError):
        augment.same_shapes(ours, [[view.float() for view in pair] for pair in ours])


def test_the_check_sees_a_different_step(monkeypatch):
    steps = []
    monkeypatch.setattr(step, 'same_step', lambda *sides: steps.extend(sides))
    step.check_one_step()
    monkeypatch.undo()
    ours, theirs = steps[:2]
    step.same_step(ours, theirs)
    with pytest.raises(AssertionError):
        step.same_step({**ours, 'loss': ours['loss'] + 1e-5}, theirs)
    with pytest.raises(AssertionError, match='first layer differently'):
        step.same_step({**ours, 'first': (1 + 1e-3) * ours['first']}, theirs)


def test_lightly_takes_the_same_step():
    pytest.importorskip(
        'lightly', reason='lightly is not installed (pip install --no-deps lightly)'
    )
    assert list(step.peers()) == ["mmpretrain's BYOL", "lightly's BYOL"]
    step.check_one_step()
    crops.check_one_step()


def test_two_processes_take_lightlys_step_on_crops(run_processes, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['benchmark', '--suite', 'step', '--processes', '2'])
    with pytest.raises(SystemExit, match='2'):
        main()
    assert '--processes: requires --suite crops' in capsys.readouterr().err
    pytest.importorskip(
        'lightly', reason='lightly is not installed (pip install --no-deps lightly)'
    )
    run_processes(2, Path(__file__).with_name('crops_over_processes.py'))


def test_fast_step_is_what_its_keys_say():
    """With `fused=True`, our_step uses torch's fused SGD. With `channels_last=True`, the backbone gets channels-last images."""
    layouts = []
    model = step.siamese(step.TINY, 'mocov2plus')
    model.backbone.register_forward_pre_hook(
        lambda network, images: layouts.append(
            images[0].is_contiguous(memory_format=torch.channels_last)
        )
    )
    fast = dict(precision='bfloat16', channels_last=True, fused=True)
    one = step.our_step(model, step.random_batch(step.TINY), 'SGD', **fast)
    with torch.profiler.profile() as recorded:
        one()
    assert layouts and all(layouts)
    assert 'aten::_fused_sgd_' in {event.key for event in recorded.key_averages()}


def test_suites_choose_kernels_like_a_run(monkeypatch):
    """As mmairl's configs do, `main` sets cudnn.benchmark, so that the suites time the kernels that training uses."""
    monkeypatch.setattr('sys.argv', ['benchmark', '--suite', 'teacher', '--quick', '--rounds', '1'])
    monkeypatch.setattr('projects.benchmark.__main__.compare_with_peers', lambda args: None)
    monkeypatch.setattr(torch.backends.cudnn, 'benchmark', False)
    main()
    assert torch.backends.cudnn.benchmark


def test_fused_norm_keeps_traffic_below_300_gigabytes():
    """A step of MoCo v2+ on ResNet-50 with 256 images moves at most 300 GB of memory. Without `fused_norm`, it moves 383 GB."""
    size = dataclasses.replace(step.ON_GPU, batch=256)
    counted = traffic.count_step(traffic.WAYS['fused norm'], size)
    assert counted.bytes.total() <= 300e9
    assert counted.bytes['cat'] < 2e9, 'torch.cat copies the gradients of the two views'
    assert counted.launches.total() < 3200
    # gpu_visit/results.py computes the highest possible speeds from GIGABYTES and GIGAFLOPS.
    gigabytes = counted.bytes.total() / 256e9
    assert gigabytes == pytest.approx(results.GIGABYTES['fused norm'], rel=0.01)
    assert counted.flops.total() / 256e9 == pytest.approx(results.GIGAFLOPS, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize('way', ['float32', 'fast'])
def test_limits_of_a_visit_are_counted(way):
    size = dataclasses.replace(step.ON_GPU, batch=256)
    gigabytes = traffic.count_step(traffic.WAYS[way], size).bytes.total() / 256e9
    assert gigabytes == pytest.approx(results.GIGABYTES[way], rel=0.01)


def test_views_on_the_device_are_counted():
    small, large = (traffic.count_views(batch, images=8) for batch in (8, 16))
    assert large.bytes.total() == pytest.approx(2 * small.bytes.total())
    assert small.launches.total() < 300
