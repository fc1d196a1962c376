"""The jobs of gpu_visit by priority: first whether mmairl runs on this GPU, then whether it is correct, then how fast it is."""

from projects.benchmark.gpu_visit import correctness, throughput
from projects.benchmark.gpu_visit.correctness import CASES, MORE_CASES, case
from projects.benchmark.gpu_visit.schedule import Job
from projects.benchmark.gpu_visit.throughput import real_run, way


def timed(name: str, limit: float) -> Job:
    return Job(name, way(name.removeprefix('step ')), limit, quiet=True)


def compared(name: str) -> Job:
    return Job(f'case {name}', case(name), 45, needs='cpu cases')


def trained(name: str, config: str, workers: int) -> Job:
    return Job(f'real run, {name}', real_run(config, workers), 60, quiet=True, needs='draw')


ON_DEVICE = 'configs/fast/mocov2plus_r50_200e_gpu.py'
IN_WORKERS = 'configs/mocov2plus_r50_200e.py'
PLAN = [
    Job('machine', correctness.machine, 30, side=True),
    Job('probe', correctness.probe, 40),
    Job('cpu cases', correctness.cpu_cases, 150, side=True),
    Job('draw', throughput.draw, 90, side=True),
    Job('compile warm-up', way('compile', warm_up=True), 200, side=True),
    Job('demo', correctness.demo, 150, side=True),
    Job('numbers', correctness.numbers, 60),
    *[compared(name) for name in CASES],
    Job('resume', correctness.resume, 80),
    Job('waits', correctness.waits, 30),
    timed('step fast', 40),
    Job('supervised', throughput.supervised, 25, quiet=True),
    timed('step fused norm', 40),
    timed('step compile', 70),
    trained('views on the device', ON_DEVICE, 14),
    Job('other libraries', throughput.other_libraries, 60, quiet=True),
    Job('kernels', throughput.kernels, 30, quiet=True),
    timed('step graphs', 90),
    timed('step fast 64', 25),
    timed('step float32', 30),
    Job('evaluation', throughput.evaluation, 45, quiet=True, needs='draw'),
    timed('step fast 512', 30),
    timed('step tf32', 30),
    trained('views in workers', IN_WORKERS, 15),
    timed('step bfloat16 nchw', 30),
    *[compared(name) for name in MORE_CASES],
    timed('step fast 1024', 40),
    timed('step graphs 64', 120),
    timed('step compile 512', 150),
    Job('tests', correctness.tests, 200),
]
