"""Jobs that check results on a GPU: single steps, the cases of tests/softgpu/runs.py, resumed runs, the demo and GPU tests."""

import os
import shutil
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from mmengine.hooks import Hook
from torch import Tensor, nn

from mmairl.data.preprocess import float32_precision
from mmairl.engine import run as launch
from mmairl.registry import HOOKS
from projects.benchmark.gpu_visit.schedule import Context, end_with_parent, fork
from projects.benchmark.step import ON_GPU, TINY, Size, our_step, random_batch, siamese

SMALL = Size(depth=18, image=64, batch=32, features=512, hidden=256, queue=1024)
FAST = dict(precision='bfloat16', channels_last=True, fused=True)
CASES = ('mocov2plus', 'byol_lars', 'bfloat16', 'views_on_device', 'heads', 'evaluated')
MORE_CASES = ('mocov1', 'smocov2plus', 'float16', 'zero1', 'zero3', 'zero2_float16', 'resumed')
# For each sharded case: the unsharded case on the CPU with which it is compared.
TWINS = dict(zero1='views_on_device', zero3='views_on_device', zero2_float16='float16')


def output_of(command: str) -> str:
    try:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=15)
        return done.stdout.strip()
    except subprocess.TimeoutExpired:
        return 'no answer in 15 s'


def machine(context: Context) -> None:
    """Record the GPU, its driver and the host."""
    query = 'name,driver_version,memory.total,clocks.sm,clocks.mem,temperature.gpu'
    context.record(
        card=output_of(f'nvidia-smi --query-gpu={query} --format=csv,noheader'),
        cores=len(os.sched_getaffinity(0)),
        shared_memory=output_of('df -h /dev/shm | tail -1'),
        python=sys.version.split()[0],
        compiler=output_of('gcc --version | head -1'),
    )


def seconds_of(work: Callable[[], object], repetitions: int = 20) -> float:
    """Return how many seconds a call takes on the device."""
    for _ in range(3):
        work()
    if not torch.cuda.is_available():
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
    begin.record()
    for _ in range(repetitions):
        work()
    end.record()
    end.synchronize()
    return max(begin.elapsed_time(end) / repetitions / 1e3, 1e-9)


def probe(context: Context) -> None:
    """Start CUDA, and measure the speed of memory copies, matrix products and transfers from the host."""
    device = context.device
    if device == 'cuda':
        card = torch.cuda.get_device_properties(0)
        context.record(
            device=card.name,
            multiprocessors=card.multi_processor_count,
            gigabytes=round(card.total_memory / 1e9, 1),
            cuda=torch.version.cuda,
        )
    side = 64 if context.tiny else 8192
    source = torch.empty(side**2 * 16, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * source.numel() / seconds_of(lambda: target.copy_(source))
    context.record(torch=torch.__version__, copy_terabytes_per_second=round(bandwidth / 1e12, 3))
    for name, dtype, precision in (
        ('bfloat16', torch.bfloat16, 'highest'),
        ('tf32', torch.float32, 'high'),
        ('float32', torch.float32, 'highest'),
    ):
        torch.set_float32_matmul_precision(precision)
        x = torch.ones(side, side, device=device, dtype=dtype)
        rate = 2 * side**3 / seconds_of(lambda x=x: x @ x, 5)
        context.record(product=name, teraflops=round(rate / 1e12, 2))
    if device == 'cuda':
        pinned = torch.empty(source.numel() // 4, dtype=torch.uint8).pin_memory()
        part = source[: pinned.numel()]
        rate = pinned.numel() / seconds_of(lambda: part.copy_(pinned, non_blocking=True), 5)
        context.record(host_to_device_gigabytes_per_second=round(rate / 1e9, 1))


def steps(
    dtype: torch.dtype, device: str, fast: dict, size: Size, method: str, optimizer: str
) -> tuple[Tensor, Tensor]:
    """Return the losses of three steps, and how much these steps change the student's weights, as float64 tensors."""
    with float32_precision(fast.get('precision', 'float32')):
        model = siamese(size, method).to(dtype).to(device)
        step = our_step(model, random_batch(size, device), optimizer, **fast)
        before = student_weights(model)
        losses = [float(step()['loss']) for _ in range(3)]
    return torch.tensor(losses, dtype=torch.float64), student_weights(model) - before


def student_weights(model: nn.Module) -> Tensor:
    parts = (model.backbone, model.projector, model.predictor)
    weights = [weight.detach().flatten() for part in parts for weight in part.parameters()]
    return torch.cat(weights).double().cpu()


def relative_error(found: Tensor, expected: Tensor) -> float:
    distance = (found.double() - expected.double()).norm()
    return float(distance / expected.double().norm().clamp_min(1e-9))


def numbers(context: Context) -> None:
    """Compare three steps in each precision with the same steps in float64 on the CPU."""
    size = TINY if context.tiny else SMALL
    ways: dict[str, tuple[torch.dtype, str, dict]] = {
        'float64': (torch.float64, context.device, {}),
        'float32': (torch.float32, context.device, {}),
        'float32 on the CPU': (torch.float32, 'cpu', {}),
        'tf32': (torch.float32, context.device, dict(precision='tf32')),
        'bfloat16': (torch.float32, context.device, dict(precision='bfloat16')),
        'fast': (torch.float32, context.device, FAST),
        'fast, fused norm': (torch.float32, context.device, dict(FAST, fused_norm=True)),
    }
    for method, optimizer in (('mocov2plus', 'SGD'), ('byol', 'LARS')):
        losses, moves = steps(torch.float64, 'cpu', {}, size, method, optimizer)
        for name, (dtype, device, fast) in ways.items():
            device_losses, device_moves = steps(dtype, device, fast, size, method, optimizer)
            context.record(
                method=f'{method}, {optimizer}',
                way=name,
                loss_error=f'{relative_error(device_losses, losses):.1e}',
                step_error=f'{relative_error(device_moves, moves):.1e}',
            )


def without_software_gpu() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != 'SOFTGPU'}


def cpu_cases(context: Context) -> None:
    """Run the cases of tests/softgpu/runs.py on the CPU. The jobs that `case` returns compare the device with them."""
    cases = tuple(case for case in (*CASES, *MORE_CASES) if case not in TWINS and case != 'resumed')
    folder = context.scratch / 'cpu'
    folder.mkdir(parents=True, exist_ok=True)
    root = Path.cwd()
    path = [str(root / 'tests/softgpu'), str(root / 'tests'), os.environ['PYTHONPATH']]
    environment = without_software_gpu()
    environment.update(PYTHONPATH=os.pathsep.join(path), CUDA_VISIBLE_DEVICES='')
    command = [sys.executable, 'tests/softgpu/runs.py', str(folder), *cases]
    subprocess.run(command, env=environment, preexec_fn=end_with_parent)
    finished = sorted(path.stem for path in folder.glob('*.pth'))
    context.record(finished=finished)
    if len(finished) < len(cases):
        raise AssertionError(f'{len(cases) - len(finished)} cases failed; see the log')


def case(name: str) -> Callable[[Context], None]:
    """Return a job that runs a case of tests/softgpu/runs.py on the device and compares its result with the CPU's result.

    The job of the case `resumed` compares an uninterrupted and a resumed run on the device instead.
    """

    def work(context: Context) -> None:
        folder = context.scratch / 'device'
        folder.mkdir(exist_ok=True)
        sys.path[:0] = [str(Path('tests/softgpu').resolve()), str(Path('tests').resolve())]
        import runs

        if runs.main(folder, [name]):
            raise AssertionError('the case failed; see the log')
        result = read_result(folder / f'{name}.pth')
        if name == 'resumed':
            whole, resumed = (result[run]['weights'] for run in ('whole', 'resumed'))
            context.record(tensors=len(whole), resumed_differs_in=different(whole, resumed))
            return
        expected = cpu_result(context, TWINS.get(name, name))
        context.record(**differences(result, expected))

    return work


def cpu_result(context: Context, name: str) -> dict:
    path = context.scratch / 'cpu' / f'{name}.pth'
    end = time.monotonic() + 40 * context.patience
    while not path.exists():
        if time.monotonic() > end:
            raise AssertionError(f'the CPU has no result of {name}')
        time.sleep(0.2)
    return read_result(path)


def read_result(path: Path) -> dict:
    return torch.load(path, weights_only=True)  # noqa: TID251  weights only


def differences(found: object, expected: object, prefix: str = '') -> dict[str, str]:
    """Return the relative error of each tensor. For the weights, return only the largest relative error."""
    errors = {}
    for key, value in expected.items():
        if key in ('work', 'scaler', 'skipped'):
            continue
        name = f'{prefix}{key}'
        if isinstance(value, Tensor):
            errors[name] = f'{relative_error(found[key], value):.1e}'
        elif isinstance(value, dict) and key == 'weights':
            rows = {part: relative_error(found[key][part], value[part]) for part in value}
            # Leave out the queue: with several processes, it has the same rows in another order.
            rows.pop('queue.vectors', None)
            worst = max(rows, key=rows.get)
            errors[name] = f'{rows[worst]:.1e} ({worst})'
        elif isinstance(value, dict):
            errors.update(differences(found[key], value, f'{name}.'))
        else:
            errors[name] = f'{found[key]} (CPU: {value})'
    return errors


class Left(Exception):
    """The exception that ends a run early, to simulate an interruption."""


@HOOKS.register_module(force=True)
class LeaveVisitedRun(Hook):
    """Raise `Left` after this many iterations, to interrupt the run."""

    priority = 'LOWEST'

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if runner.iter + 1 == self.iteration:
            raise Left


def short_run(
    context: Context, folder: Path, fast: dict, deterministic: bool, leave: bool, resume: bool
) -> int:
    """Train eight steps, or only six if `leave`. A checkpoint is saved every four steps."""
    sys.path.insert(0, str(Path.cwd() / 'tests'))
    from harness import toy

    width, batch, size = (16, 16, 32) if context.tiny else (64, 32, 96)
    cfg = toy.config(
        'mocov2plus_r50_200e.py', str(folder), steps=8, batch=batch, queue=256, width=width
    )
    cfg.train_dataloader.dataset.size = size
    if not context.tiny:
        cfg.model.backbone.depth = 50
        cfg.model.projector.in_channels = 2048
    cfg.model.data_preprocessor = dict(type='ViewPreprocessor', mean=(0.0,) * 3, std=(1.0,) * 3)
    cfg.default_hooks.checkpoint.update(interval=4, save_last=True)
    cfg.fast = fast
    cfg.resume = resume
    cfg.randomness.deterministic = deterministic
    if leave:
        cfg.custom_hooks = [dict(type='LeaveVisitedRun', iteration=6)]
    try:
        runner = launch.train(cfg)
    except Left:
        return 0
    state = runner.model.state_dict().items()
    tensors = {name: value.cpu() for name, value in state if isinstance(value, Tensor)}
    torch.save(tensors, folder / 'end.pth')
    return 0


def resume(context: Context) -> None:
    """Count the tensors of a run that differ in a second run and in an interrupted and resumed run, all with the same seed.

    Each run has its own process.
    """
    for name, fast, deterministic in (
        ('default', {}, False),
        ('fast', FAST, False),
        ('deterministic', {}, True),
    ):
        ends = {}
        for run, leave, again in (
            ('first', False, False),
            ('second', False, False),
            ('resumed', True, False),
            ('resumed', False, True),
        ):
            folder = context.scratch / f'resume_{name}_{run}'
            if not again:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
            settings = (context, folder, fast, deterministic, leave, again)
            pid = fork(lambda settings=settings: short_run(*settings))
            if os.waitpid(pid, 0)[1]:
                raise AssertionError(f'{name}: the {run} run failed; see the log')
            ends[run] = folder / 'end.pth'
        states = {run: read_result(path) for run, path in ends.items()}
        first = states['first']
        context.record(
            way=name,
            tensors=len(first),
            second_run_differs_in=different(first, states['second']),
            resumed_differs_in=different(first, states['resumed']),
        )


def different(one: dict[str, Tensor], other: dict[str, Tensor]) -> int:
    return sum(not torch.equal(one[name], other[name]) for name in one)


def waits(context: Context) -> None:
    """Count how often the host waits for the device in a step, and record the lines of code that wait most often."""
    size = replace(TINY if context.tiny else ON_GPU, batch=4 if context.tiny else 32)
    for name, fast in (('fast', FAST), ('float16', dict(precision='float16', fused=True))):
        if context.device == 'cpu':
            context.record(way=name, waits='requires a GPU')
            continue
        model = siamese(size, 'mocov2plus').to(context.device)
        step = our_step(model, random_batch(size, context.device), 'SGD', **fast)
        for _ in range(3):
            step()
        with warnings.catch_warnings(record=True) as records:
            warnings.simplefilter('always')
            torch.cuda.set_sync_debug_mode('warn')
            step()
            torch.cuda.set_sync_debug_mode('default')
        places = Counter(
            f'{Path(warning.filename).name}:{warning.lineno}'
            for warning in records
            if 'called a synchronizing' in str(warning.message)
        )
        context.record(way=name, waits=places.total(), places=dict(places.most_common(5)))


def demo(context: Context) -> None:
    """Run tools/demo.py, and record its time and its k-NN scores."""
    few = [
        'train_cfg.max_epochs=2',
        'train_dataloader.dataset.count=512',
        'evaluation.train.count=600',
        'evaluation.test.count=120',
    ]
    command = [sys.executable, 'tools/demo.py', '--seed', '0', '--work-dir']
    command += [str(context.scratch / 'demo'), *(['--cfg-options', *few] if context.tiny else [])]
    start = time.monotonic()
    done = subprocess.run(
        command,
        env=without_software_gpu(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=end_with_parent,
    )
    print(done.stdout[-3000:])
    scores = [line.strip() for line in done.stdout.splitlines() if 'nearest' in line.lower()]
    context.record(took=round(time.monotonic() - start), scores=scores[:3])
    if done.returncode:
        raise AssertionError(f'the demo ended with {done.returncode}; see the log')


def tests(context: Context) -> None:
    """Run the GPU tests with pytest. A rehearsal only runs the test of the evaluation heads."""
    command = [sys.executable, '-m', 'pytest', '-m', 'gpu', 'tests/softgpu']
    command += ['-p', 'no:cacheprovider', *(['-k', 'heads_equal'] if context.tiny else [])]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=end_with_parent,
    )
    print(done.stdout[-6000:])
    context.record(summary=done.stdout.strip().splitlines()[-1:])
    if done.returncode:
        raise AssertionError(f'pytest ended with {done.returncode}; see the log')
