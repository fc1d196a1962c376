"""The written model of a cluster against sums done by hand, and its counts against the network's."""

from pathlib import Path

import pytest
import torch

from mmairl.configs import load_config
from mmairl.errors import UserError
from mmairl.registry import MODELS
from projects.benchmark.cluster import Machine, Work, one_pass, predict, statistics, table
from projects.benchmark.step import FULL, flops

CONFIG = Path(__file__).parents[3] / 'configs' / 'mocov2plus_r50_200e.py'

PLAIN = Machine(sustained=100.0, nvlink=10.0, network=2.0, nvlink_hop=0.5, network_hop=3.0, in_machine=4)
SMALL = Work(
    batch=2,
    flops=50.0,
    overlap=0.25,
    parameters=8,
    student_layers=2,
    student_channels=6,
    teacher_layers=1,
    teacher_channels=3,
    width=5,
)


def test_one_gpu_talks_to_nobody():
    step = predict(1, SMALL, PLAIN)
    assert (step.compute, step.gradients, step.statistics, step.keys) == (1.0, 0.0, 0.0, 0.0)
    assert step.efficiency == 1 and step.images_per_second == 2


def test_a_pass_is_a_ring_of_bytes_and_a_tree_of_hops():
    assert one_pass(40, 4, PLAIN) == 3 / 4 * 40 / 10 + 2 * 0.5
    assert one_pass(40, 3, PLAIN) == pytest.approx(2 / 3 * 40 / 10 + 2 * 0.5)
    assert one_pass(40, 16, PLAIN) == 15 / 16 * 40 / 2 + 2 * 0.5 + 2 * 3.0


def test_a_step_within_a_machine_by_hand():
    step = predict(4, SMALL, PLAIN)
    # 32 bytes of gradients, twice around: 2 (3/4 * 3.2 + 1) = 6.8, of which a quarter of the second of compute is hidden
    assert step.gradients == pytest.approx(6.8 - 0.25)
    # Forward, a student's layer gathers 4 (2 * 3 + 1) bytes from each of 4 GPUs, twice for two views: 112 bytes take 8.4 + 1;
    # the teacher's one likewise. Backward, a layer reduces 24 bytes: 2 (1.8 + 1).
    assert step.statistics == pytest.approx(2 * 2 * 9.4 + 2 * 1 * 9.4 + 2 * 2 * 2 * 2.8)
    # 4 bytes x 2 images x 4 GPUs x 5 numbers: 160 bytes take 12 + 1
    assert step.keys == pytest.approx(13)
    assert step.time == pytest.approx(1 + step.gradients + step.statistics + step.keys)
    assert step.efficiency == pytest.approx(1 / step.time)
    assert step.images_per_second == pytest.approx(8 / step.time)


def test_gradients_that_travel_within_the_overlap_cost_nothing():
    assert predict(4, Work(**{**vars(SMALL), 'overlap': 7.0}), PLAIN).gradients == 0


def test_the_network_beyond_a_machine_is_the_bottleneck():
    inside, outside = predict(8), predict(16)
    assert outside.keys > 2 * inside.keys and statistics(16, Work(), Machine()) > inside.statistics
    assert predict(512).efficiency < predict(64).efficiency < predict(8).efficiency < 1


def test_the_closed_form_at_the_defaults():
    """64 GPUs, 128 images each: 3 hops inside, 3 outside, 33 us a pass."""
    step = predict(64)
    assert step.compute == pytest.approx(128 / 2600)
    bytes_forward = 2 * 4 * 64 * (2 * 34_752 + 55) + 2 * 4 * 64 * (2 * 30_656 + 54)
    bytes_backward = 2 * 2 * 8 * 34_752
    passes = 2 * (55 + 54) + 2 * 2 * 55
    assert step.statistics == pytest.approx(63 / 64 * (bytes_forward + bytes_backward) / 50e9 + passes * 33e-6)
    assert step.keys == pytest.approx(63 / 64 * 4 * 128 * 64 * 256 / 50e9 + 33e-6)
    assert step.gradients == 0  # 5.5 ms, behind a quarter of 49 ms


def test_the_counts_are_the_networks():
    model, work = MODELS.build(load_config(str(CONFIG)).model), Work()
    assert sum(weight.numel() for weight in model.parameters() if weight.requires_grad) == work.parameters
    norms = {name: m for name, m in model.named_modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)}
    teacher = {name: layer.num_features for name, layer in norms.items() if name.startswith('teacher')}
    student = {name: layer.num_features for name, layer in norms.items() if name not in teacher}
    assert (len(student), sum(student.values())) == (work.student_layers, work.student_channels)
    assert (len(teacher), sum(teacher.values())) == (work.teacher_layers, work.teacher_channels)
    assert flops(FULL) / FULL.batch == pytest.approx(work.flops, rel=0.02)


def test_gpus_that_do_not_fill_their_machines_are_refused():
    with pytest.raises(UserError, match='12 GPUs do not fill machines of 8'):
        predict(12)


def test_the_table_has_a_row_per_prediction():
    lines = table().splitlines()
    assert len(lines) == 2 + 5 and lines[2].startswith('| 1 | 128 |') and '| 64 | 16 |' in lines[-1]
