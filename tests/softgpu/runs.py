"""Cases of the GPU tests. A case runs on a real GPU, on the software GPU, or on the CPU for comparison.

Usage: `python runs.py FOLDER CASE...`. The result of a case is saved as FOLDER/CASE.pth. If a case fails, the next one
still runs.
"""

import copy
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from importlib import import_module
from pathlib import Path

if 'SOFTGPU' in os.environ:
    import softgpu

import torch
import torch.distributed as dist
from harness import toy
from harness.kernels import Kernels
from harness.resume import LeftInTheMiddle
from mmengine.config import Config
from mmengine.dist import all_reduce, get_rank
from mmengine.hooks import Hook
from torch.cuda._sanitizer import CUDASanitizerErrors, enable_cuda_sanitizer
from torch.utils.data import Subset

from mmairl.engine import run as launch
from mmairl.engine.batches import prefetch_to_device
from mmairl.engine.checkpoint import trust_mmengine_checkpoints
from mmairl.engine.distributed import start_processes
from mmairl.engine.hooks import progress
from mmairl.engine.run import strategy_named
from mmairl.evaluation.features import Extraction, extract
from mmairl.evaluation.knn import knn_right
from mmairl.evaluation.logreg import logistic_regression
from mmairl.models.heads import unit
from mmairl.models.norm import SyncBN, views_in_batch
from mmairl.models.processes import own_parts
from mmairl.registry import DATASETS, HOOKS, MODELS
from mmairl.signals import stop_processes

DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'
LAUNCHER = 'pytorch' if os.environ.get('WORLD_SIZE', '1') != '1' else 'none'
EVERY = 4  # A log line is written at every fourth iteration
FAST = dict(precision='bfloat16', channels_last=True, fused=True)
VIEW = [
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    dict(type='RandomGrayscale', p=0.2),
    dict(type='GaussianBlur', p=0.5, sigma=(0.1, 2.0)),
    dict(type='RandomFlip', p=0.5),
]
ON_DEVICE = {
    'train_dataloader.dataset': dict(type='Shapes', split='train', count=96, size=32, views=None, _delete_=True),
    'train_dataloader.pin_memory': True,
    'model.data_preprocessor.views': [VIEW, VIEW],
}
FLOAT16 = {'fast': dict(precision='float16', fused=True), 'custom_hooks': [dict(type='Overflow')]}
OPTIONAL_HOOKS = [
    dict(type='OnlineProbeHook', classes=4, lr=0.5),
    dict(type='OnlineKNNHook', interval=1, k=5),
    dict(type='PreciseBNHook', batches=2),
]
HEADS = {
    'contrastive': dict(type='ContrastiveHead'),
    'regression': dict(type='RegressionHead'),
    'info_nce': dict(type='InfoNCEHead'),
    'optimal_linear': dict(type='OptimalLinearHead', ridge=0.1),
    'vicreg': dict(type='VICRegHead'),
    'dino': dict(type='DINOHead', prototypes=6),
    'barlow': dict(type='BarlowTwinsHead'),
    'mocov3': dict(type='BatchContrastiveHead'),
    'swav': dict(type='SwAVHead', channels=6, prototypes=5),
    'lejepa': dict(type='LeJEPAHead', slices=8),
    'msbreg': dict(
        type='RegularisedHead',
        base=dict(type='CentroidHead'),
        terms=[dict(type=f'{name}Term') for name in ('SingularValue', 'Brownian', 'Uniformity')],
    ),
}


def zero(stage: int, **options: object) -> dict:
    return {**ON_DEVICE, **options, 'strategy': strategy_named(f'zero{stage}')}


MOCO_OPTIONS = {
    'custom_hooks': OPTIONAL_HOOKS,
    'evaluation': toy.KNN,
    'optim_wrapper.clip_grad': dict(max_norm=0.5),
}
LARS_OPTIONS = {'optim_wrapper.accumulative_counts': 2}
# Each case has a config and options for it.
RUNS = {
    'mocov1': ('mocov1_r50_200e.py', {}),
    'smocov2plus': ('smocov2plus_r50_200e.py', {'fast': dict(fused=True)}),
    'mocov2plus': ('mocov2plus_r50_200e.py', MOCO_OPTIONS),
    'byol_lars': ('byol_lars_r50_200e.py', LARS_OPTIONS),
    'bfloat16': ('byol_r50_200e.py', {'fast': FAST}),
    'views_on_device': ('mocov2plus_r50_200e.py', ON_DEVICE),
    'float16': ('mocov2plus_r50_200e.py', {**ON_DEVICE, **FLOAT16}),
    'zero1': ('mocov2plus_r50_200e.py', zero(1)),
    'zero3': ('mocov2plus_r50_200e.py', zero(3)),
    'zero2_float16': ('mocov2plus_r50_200e.py', zero(2, **FLOAT16)),
    'zero2': ('mocov2plus_r50_200e.py', {**MOCO_OPTIONS, 'strategy': strategy_named('zero2')}),
    'zero2_lars': ('byol_lars_r50_200e.py', {**LARS_OPTIONS, 'strategy': strategy_named('zero2')}),
}


def set_sync_debug_mode(mode: str | int) -> None:
    if DEVICE == 'cuda':
        torch.cuda.set_sync_debug_mode(mode)


@HOOKS.register_module()
class RefuseWaits(Hook):
    """Make torch raise an error if the host waits for the device between two log lines.

    The first two steps are excluded, because DDP is set up during them.
    """

    priority = 'HIGHEST'

    def __init__(self) -> None:
        self.work: list[dict[str, int]] = []  # Operations and copies before each step, since the process started

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        step = runner.iter + 1
        wrapper = runner.optim_wrapper
        scaler_waits = wrapper.loss_scaler.is_enabled() and not wrapper.optimizer.defaults.get('fused')
        between = step > 2 and step % EVERY and step < runner.max_iters
        set_sync_debug_mode('error' if between and not scaler_waits else 'default')
        self.work.append(softgpu.work() if 'SOFTGPU' in os.environ else {})


@HOOKS.register_module()
class Overflow(Hook):
    """Scale the loss of the third step so that its float16 gradients overflow. Afterwards, the scale is 1024."""

    priority = 'HIGHEST'
    before = after = ()

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter != 2:
            return
        scaler = runner.optim_wrapper.loss_scaler
        mode = torch.cuda.get_sync_debug_mode() if DEVICE == 'cuda' else 0
        set_sync_debug_mode('default')
        scaler.load_state_dict({**scaler.state_dict(), 'scale': 2.0**100, 'backoff_factor': 2.0**-90})
        set_sync_debug_mode(mode)
        self.before = self.weights(runner)

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if runner.iter == 2:
            self.after = self.weights(runner)

    def weights(self, runner) -> list[torch.Tensor]:
        return [weight.detach().clone() for weight in own_parts(list(runner.model.parameters()))]

    def skipped(self, names: list[str]) -> bool:
        """Return whether the step left the student unchanged. The teacher may still move towards the student."""
        same = [torch.equal(*pair) for pair in zip(self.before, self.after)]
        return all(equal for name, equal in zip(names, same) if not name.startswith('teacher.'))


def on_another_stream(loss: torch.Tensor) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        loss.mul_(2)


DEFECTS: dict[str, Callable[[torch.Tensor], object]] = {
    'wait': lambda loss: loss.item(),
    'host_scalar': lambda loss: loss + torch.tensor(2.0, device=DEVICE),
    'copy': lambda loss: torch.ones(3).to(DEVICE, non_blocking=True),
    'storm': lambda loss: [loss + number for number in range(500)],
    'stream': on_another_stream,
}


@HOOKS.register_module()
class Plant(Hook):
    """Add a defect to each step, starting with the third."""

    def __init__(self, kind: str) -> None:
        self.plant = DEFECTS[kind]

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if runner.iter >= 2:
            self.plant(outputs['loss'])


def config(name: str, work_dir: Path, options: dict, steps: int = 6) -> Config:
    cfg = toy.config(name, str(work_dir), steps=steps, batch=16, queue=64)
    cfg.model.backbone = dict(type='Small')
    cfg.model.projector.in_channels = 22
    cfg.model.data_preprocessor = dict(type='ViewPreprocessor', mean=(0.0,) * 3, std=(1.0,) * 3)
    cfg.default_hooks.logger.interval = cfg.default_hooks.health.interval = EVERY
    cfg.default_hooks.progress = dict(type='ProgressHook', interval=EVERY)
    cfg.default_hooks.checkpoint.update(interval=100, save_last=False)
    hooks = [dict(type='RefuseWaits'), *options.get('custom_hooks', [])]
    cfg.merge_from_dict({**copy.deepcopy(options), 'custom_hooks': hooks})
    return cfg


def outcome(cfg: Config, launcher: str = LAUNCHER) -> dict:
    """Train, and return the values that the tests compare."""
    try:
        runner = launch.train(cfg, launcher)
    finally:
        set_sync_debug_mode('default')
    model = getattr(runner.model, 'module', runner.model)
    tensors = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    devices = {value.device.type for name, value in tensors.items() if not name.endswith('_extra_state')}
    assert devices == {DEVICE}, devices
    hooks = {type(hook): hook for hook in runner.hooks}
    before, after = hooks[RefuseWaits].work[-2:] if RefuseWaits in hooks else ({}, {})
    overflow = hooks.get(Overflow)
    sharded = runner.strategy
    weights = sharded.weights(runner.model) if sharded else model.state_dict()
    scalars = runner.message_hub.log_scalars
    losses = torch.tensor(runner.message_hub.get_scalar('train/loss').data[0], device=DEVICE)
    all_reduce(losses, 'mean')
    return dict(
        losses=losses.cpu(),
        weights={name: weights[name].detach().cpu() for name in tensors if get_rank() == 0},
        # These are the operations and copies of one step between two log lines.
        work={kind: after[kind] - before[kind] for kind in after},
        scaler=runner.optim_wrapper.loss_scaler.state_dict(),
        knn=[float(values.current()) for name, values in scalars.items() if 'knn' in name],
        skipped=overflow and overflow.skipped([name for name, _ in model.named_parameters()]),
    )


def trained(case: str, folder: Path) -> dict:
    name, options = RUNS[case]
    launcher = LAUNCHER
    if DEVICE == 'cuda' and launcher == 'none' and case.startswith(('bfloat16', 'zero')):
        # These cases test DDP, ZeRO and NCCL on a single GPU.
        os.environ['LOCAL_RANK'] = '0'
        gpu = torch.device('cuda', 0)
        dist.init_process_group('nccl', store=dist.HashStore(), rank=0, world_size=1, device_id=gpu)
        launcher = 'pytorch' if case == 'bfloat16' else 'none'
    return outcome(config(name, folder / 'run' / case, options), launcher)


def planted(kind: str, folder: Path) -> dict:
    """Train with a defect. Return the error that ends the run, or else the result of `outcome`."""
    options = {**ON_DEVICE, 'custom_hooks': [dict(type='Plant', kind=kind)]}
    try:
        return outcome(config('mocov2plus_r50_200e.py', folder / 'run' / kind, options))
    except (RuntimeError, CUDASanitizerErrors) as error:
        return dict(error=f'{type(error).__name__}: {error}')


def heads(folder: Path) -> dict:
    """Return the loss and the gradients of each head.

    Both are computed twice. The second computation fails if it waits for the device.
    """
    import_module('projects.msbreg.msbreg')
    results = {}
    for name, settings in HEADS.items():
        torch.manual_seed(0)
        head = MODELS.build(settings).to(DEVICE)
        rows = torch.randn(5, 8, 6).to(DEVICE).requires_grad_()
        for mode in ('default', 'error'):
            set_sync_debug_mode(mode)
            torch.manual_seed(1)
            *views, negatives = rows.unbind()
            loss = head(dict(enumerate(views[:2])), dict(enumerate(views[2:])), unit(negatives))['loss']
            (gradient,) = torch.autograd.grad(loss, rows)
        set_sync_debug_mode('default')
        results[name] = dict(loss=loss.detach().cpu(), gradient=gradient.cpu())
    return results


def resumed(folder: Path) -> dict:
    """Train MoCo v2 in float16: once without interruption, and once interrupted and resumed.

    The shuffling of MoCo v2 draws random numbers on the device.
    """

    def run(name: str, hooks: list[dict], **options: object) -> dict:
        cfg = config('mocov2_r50_200e.py', folder / 'run' / name, {**FLOAT16, **options})
        # RefuseWaits is left out, because saving a checkpoint copies tensors to the host and may
        # wait.
        cfg.custom_hooks = [*cfg.custom_hooks[1:], *hooks]
        return outcome(cfg)

    saving = {'default_hooks.checkpoint.interval': 3}
    whole = run('whole', [], **saving)
    with suppress(LeftInTheMiddle):
        run('left', [dict(type='LeaveAt', iteration=4)], **saving)
    return dict(whole=whole, resumed=run('left', [], resume=True))


def evaluated(folder: Path) -> dict:
    """Return the features of an untrained backbone, their k-NN accuracy and logistic regression, and the number of waits."""
    torch.manual_seed(0)
    network = MODELS.build(dict(type='Small'))
    settings = Extraction((0.0,) * 3, (1.0,) * 3, batch_size=16, device=DEVICE)

    def features(count: int):
        data = DATASETS.build(dict(type='Shapes', split='val', count=count, size=32))
        return extract(network, Subset(data, range(count)), settings)

    test = features(32)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        set_sync_debug_mode('warn')
        train = features(64)  # With four batches, a wait for each batch would be noticed
        set_sync_debug_mode('default')
    waits = sum('called a synchronizing' in str(warning.message) for warning in seen)
    fitted = logistic_regression(train, test, strengths=[1e-2, 1.0], device=DEVICE)
    knn = 100 * knn_right(train, test, [5], device=DEVICE)[5].double().mean().item()
    results = dict(knn=knn, logreg=fitted.scores, strength=fitted.strength)
    return dict(features=train.x.cpu(), waits=waits, **results)


def prefetched(folder: Path) -> dict:
    """Return the memory that the allocator holds after each of several epochs in which batches are copied to the device."""
    views = [torch.zeros(8, 3, 224, 224, dtype=torch.uint8).pin_memory() for _ in range(2)]
    reserved = []
    for _ in range(12):
        for batch in prefetch_to_device(dict(inputs=views) for _ in range(4)):
            float_views = [view.float() for view in batch['inputs']]
        del batch, float_views
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    return dict(reserved=reserved)


def normalized(folder: Path) -> dict:
    """Return the number of launches of each operation when SyncBN normalizes two views in the default memory layout."""
    layer = SyncBN(8).to(DEVICE)
    x = torch.randn(4, 8, 6, 6).to(DEVICE)
    with Kernels(DEVICE) as seen, views_in_batch([layer], 2):
        layer(x)
    return dict(launches=dict(seen.launches))


CASES: dict[str, Callable[[Path], dict]] = {
    **{case: partial(trained, case) for case in RUNS},
    **{f'planted_{kind}': partial(planted, kind) for kind in DEFECTS},
    'heads': heads,
    'resumed': resumed,
    'evaluated': evaluated,
    'prefetched': prefetched,
    'normalized': normalized,
}


def main(folder: Path, cases: list[str]) -> int:
    """Run cases one after another. Return the number of cases that failed."""
    if 'SOFTGPU' in os.environ:
        enable_cuda_sanitizer()  # The sanitizer checks that streams wait for each other
    # On a slow machine, a progress line (which waits for the device) could otherwise come between
    # two log lines.
    progress.SECONDS = float('inf')
    torch.backends.cudnn.allow_tf32 = False  # The CPU computes in float32
    launch.register()
    trust_mmengine_checkpoints()
    start_processes(LAUNCHER)
    failed = 0
    for case in cases:
        try:
            result = CASES[case](folder)
        except Exception:
            traceback.print_exc()
            failed += 1
            continue
        if get_rank() == 0:
            torch.save(result, folder / f'{case}.tmp')
            os.replace(folder / f'{case}.tmp', folder / f'{case}.pth')
    stop_processes()
    return failed


if __name__ == '__main__':
    with softgpu.Numbers() if 'SOFTGPU' in os.environ else nullcontext():
        sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
