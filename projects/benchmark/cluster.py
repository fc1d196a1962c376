"""What many GPUs would make of a step: a written model, for a cluster is not to be had where these docs are written.

With P GPUs, G of them in a machine, and L = ceil(log2 P) levels of a tree over them::

    time = compute + exposed gradients + batch statistics + keys

    compute     batch x FLOPs an image / sustained FLOP/s                     (the same on every GPU)
    pass(n)     (P - 1) / P x n / bandwidth + the latency of L hops           (n bytes once around; the slowest link counts)
    gradients   2 pass(4 x parameters), of which as much is hidden as the overlap lasts
    statistics  SyncBN, which nothing hides: a pass a layer forward (all-gather) and two backward (all-reduce)
    keys        pass(4 x batch x P x width), in full: they travel while the next step begins, but SyncBN queues behind them

This is the bandwidth of a ring and the latency of a tree, the better of NCCL's two in each term, without stragglers and
without what several collectives take from each other: an upper bound of the efficiency, of the right order.
"""

import math
from dataclasses import asdict, dataclass, replace

from mmairl.errors import UserError

NOTE = (
    'What many GPUs would make of it is not measured but computed, by a written model of bytes, FLOPs and latencies '
    '(`projects/benchmark/cluster.py`): ResNet-50 at 224 pixels on H200s, eight in a machine, 400 Gb/s a GPU between machines, '
    'without stragglers. It is an upper bound of the efficiency.'
)


@dataclass(frozen=True)
class Machine:
    """A GPU and its links, each way. The defaults: H200s, eight in a machine.

    NVLink 4 carries 450 GB/s each way; a 400 Gb/s InfiniBand port a GPU, 50 GB/s. A hop of a small collective, launch
    included, is taken to be 3 us over NVLink and 8 us over the network. `sustained` is what the network reaches, not what
    a product does: 2 600 images a second, a good figure for one H200, of 65.6 GFLOP each.
    """

    sustained: float = 2600 * 65.6e9
    nvlink: float = 450e9
    network: float = 50e9
    nvlink_hop: float = 3e-6
    network_hop: float = 8e-6
    in_machine: int = 8


@dataclass(frozen=True)
class Work:
    """A GPU's share of a step of MoCo v2+ on a ResNet-50, as its network counts it.

    A parameter's gradient is whole when the second of the two views has passed back through it, so that the exchange overlaps
    with half of the backward pass, a quarter of the step's FLOPs.
    """

    batch: int = 128
    flops: float = 65.6e9  # an image: two student passes, their backward passes, two teacher passes
    overlap: float = 0.25
    parameters: int = 35_067_456
    student_layers: int = 55  # of batch norm, and their channels
    student_channels: int = 34_752
    teacher_layers: int = 54
    teacher_channels: int = 30_656
    width: int = 256


@dataclass(frozen=True)
class Step:
    """Seconds of one step."""

    gpus: int
    batch: int
    compute: float
    gradients: float
    statistics: float
    keys: float

    @property
    def time(self) -> float:
        return self.compute + self.gradients + self.statistics + self.keys

    @property
    def efficiency(self) -> float:
        """The share that is left of P times one GPU's speed at the same batch."""
        return self.compute / self.time

    @property
    def images_per_second(self) -> float:
        return self.gpus * self.batch / self.time


def predict(gpus: int, work: Work | None = None, machine: Machine | None = None) -> Step:
    """A step on so many GPUs.

    >>> predict(1).efficiency, predict(8).gradients
    (1.0, 0.0)
    """
    work, machine = work or Work(), machine or Machine()
    if gpus < 1 or (gpus > machine.in_machine and gpus % machine.in_machine):
        raise UserError(f'{gpus} GPUs do not fill machines of {machine.in_machine}; give a multiple of it, or fewer')
    compute = work.batch * work.flops / machine.sustained
    exchange = 2 * one_pass(4 * work.parameters, gpus, machine)
    return Step(
        gpus,
        work.batch,
        compute,
        max(0.0, exchange - work.overlap * compute),
        statistics(gpus, work, machine),
        one_pass(4 * work.batch * gpus * work.width, gpus, machine),
    )


def statistics(gpus: int, work: Work, machine: Machine) -> float:
    """Two views through both networks gather mean, deviation and count of a channel; on the way back, two sums are reduced."""
    sides = ((work.student_layers, work.student_channels), (work.teacher_layers, work.teacher_channels))
    forward = sum(
        2 * layers * one_pass(4 * gpus * (2 * channels / layers + 1), gpus, machine) for layers, channels in sides
    )
    layers, channels = sides[0]
    return forward + 2 * layers * 2 * one_pass(4 * 2 * channels / layers, gpus, machine)


def one_pass(size: float, gpus: int, machine: Machine) -> float:
    """Seconds for an all-gather of `size` bytes in all; an all-reduce of as many bytes takes two."""
    outside = gpus > machine.in_machine
    bandwidth = machine.network if outside else machine.nvlink
    within = math.ceil(math.log2(min(gpus, machine.in_machine)))
    beyond = math.ceil(math.log2(gpus / machine.in_machine)) if outside else 0
    latency = within * machine.nvlink_hop + beyond * machine.network_hop
    return (gpus - 1) / gpus * size / bandwidth + latency


def predictions(work: Work | None = None, machine: Machine | None = None) -> list[Step]:
    """A batch of 128 a GPU and, at last, the benchmark's total batch of 1024 on 64."""
    work = work or Work()
    steps = [predict(gpus, work, machine) for gpus in (1, 8, 64, 512)]
    return [*steps, predict(64, replace(work, batch=1024 // 64), machine)]


def record() -> list[dict]:
    """The predictions as plain values."""
    return [{**asdict(step), 'time': step.time, 'efficiency': step.efficiency} for step in predictions()]


def table(work: Work | None = None, machine: Machine | None = None) -> str:
    """The predictions as Markdown."""
    header = 'GPUs | batch a GPU | compute | gradients | SyncBN | keys | step | efficiency | images/s'
    lines = [f'| {header} |', '|' + '---|' * 9]
    for step in predictions(work, machine):
        parts = (step.compute, step.gradients, step.statistics, step.keys, step.time)
        times = ' | '.join(f'{1000 * seconds:.2f} ms' for seconds in parts)
        speed = f'{100 * step.efficiency:.0f} % | {step.images_per_second:.0f}'
        lines.append(f'| {step.gpus} | {step.batch} | {times} | {speed} |')
    return '\n'.join(lines)
