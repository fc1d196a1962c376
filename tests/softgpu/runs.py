"""Runs of mmairl on the software GPU or, to compare with, on the CPU.

    python runs.py {cuda,cpu} OUT WORK_DIR {quick,slow}

`slow` are the cases that `make test` leaves to `make test-all`.
"""

import copy
import os
import sys
from contextlib import nullcontext, suppress
from importlib import import_module
from pathlib import Path

DEVICE, OUT, WORK, SELECTION = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]
if 'SOFTGPU' in os.environ:
    import softgpu

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from harness import resume as resuming  # noqa: E402
from harness import toy  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.dist import all_reduce, get_rank  # noqa: E402
from mmengine.hooks import Hook  # noqa: E402
from torch.cuda._sanitizer import CUDASanitizerErrors, enable_cuda_sanitizer  # noqa: E402
from torch.utils.data import Subset  # noqa: E402

from mmairl.engine import run as launch  # noqa: E402
from mmairl.engine.checkpoint import trust_mmengine_checkpoints  # noqa: E402
from mmairl.engine.distributed import start_processes  # noqa: E402
from mmairl.engine.hooks import progress  # noqa: E402
from mmairl.engine.run import strategy_named  # noqa: E402
from mmairl.evaluation.features import Extraction, extract  # noqa: E402
from mmairl.evaluation.knn import knn_right  # noqa: E402
from mmairl.evaluation.logreg import logistic_regression  # noqa: E402
from mmairl.models.heads import unit  # noqa: E402
from mmairl.models.processes import own_parts  # noqa: E402
from mmairl.registry import DATASETS, HOOKS, MODELS  # noqa: E402
from mmairl.signals import stop_processes  # noqa: E402

LAUNCHER = 'pytorch' if 'RANK' in os.environ else 'none'
EVERY = 4  # iterations between two log lines
progress.SECONDS = float('inf')  # on a slow machine a line of progress, which waits, would come between them
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
HOOKS_TO_CHOOSE = [
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
ONE = {
    'mocov1': ('mocov1_r50_200e.py', {}),
    'smocov2plus': ('smocov2plus_r50_200e.py', {'fast': dict(fused=True)}),
    'zero1': ('mocov2plus_r50_200e.py', {**ON_DEVICE, 'strategy': strategy_named('zero1')}),
    'mocov2plus': (
        'mocov2plus_r50_200e.py',
        {'custom_hooks': HOOKS_TO_CHOOSE, 'evaluation': toy.KNN, 'optim_wrapper.clip_grad': dict(max_norm=0.5)},
    ),
    'byol_lars': ('byol_lars_r50_200e.py', {'optim_wrapper.accumulative_counts': 2}),
    'bfloat16': ('byol_r50_200e.py', dict(fast=FAST)),
    'views_on_device': ('mocov2plus_r50_200e.py', ON_DEVICE),
    'float16': ('mocov2plus_r50_200e.py', {**ON_DEVICE, **FLOAT16}),
    'zero3': ('mocov2plus_r50_200e.py', {**ON_DEVICE, 'strategy': strategy_named('zero3')}),
    'zero2_float16': ('mocov2plus_r50_200e.py', {**ON_DEVICE, **FLOAT16, 'strategy': strategy_named('zero2')}),
}
SLOW = ('mocov1', 'smocov2plus', 'byol_lars', 'zero1', 'zero3')
TWO = {
    'mocov2plus': ONE['mocov2plus'],
    'bfloat16': ONE['bfloat16'],
    'zero2': (ONE['mocov2plus'][0], {**ONE['mocov2plus'][1], 'strategy': strategy_named('zero2')}),
    'zero2_lars': (ONE['byol_lars'][0], {**ONE['byol_lars'][1], 'strategy': strategy_named('zero2')}),
}


def say_on_wait(mode: str | int) -> None:
    if DEVICE == 'cuda':
        torch.cuda.set_sync_debug_mode(mode)


@HOOKS.register_module()
class RefuseWaits(Hook):
    """From the third step on, when DDP is set up, has torch raise where the host waits between two log lines."""

    priority = 'HIGHEST'

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        step = runner.iter + 1
        wrapper = runner.optim_wrapper
        reads = wrapper.loss_scaler.is_enabled() and not wrapper.optimizer.defaults.get('fused')  # torch's scaler does
        between = step > 2 and step % EVERY and step < runner.max_iters and not reads
        say_on_wait('error' if between else 'default')
        self.copies = [*getattr(self, 'copies', []), softgpu.work() if 'SOFTGPU' in os.environ else {}]


@HOOKS.register_module()
class Overflow(Hook):
    """Scales the loss of the third step so that its gradients overflow in float16; afterwards the scale is 1024."""

    priority = 'HIGHEST'
    before = after = ()

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter == 2:
            scaler, too_much = runner.optim_wrapper.loss_scaler, dict(scale=2.0**100, backoff_factor=2.0**-90)
            mode = torch.cuda.get_sync_debug_mode() if DEVICE == 'cuda' else 0
            say_on_wait('default')
            scaler.load_state_dict({**scaler.state_dict(), **too_much})
            say_on_wait(mode)
            self.before = [one.detach().clone() for one in own_parts(list(runner.model.parameters()))]

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if runner.iter == 2:
            self.after = [one.detach().clone() for one in own_parts(list(runner.model.parameters()))]

    def skipped(self, names: list[str]) -> bool:
        """Whether the student stayed as it was in that step; its teacher may go on towards it."""
        kept = [torch.equal(one, other) for one, other in zip(self.before, self.after)]
        return all(same for name, same in zip(names, kept) if not name.startswith('teacher.'))


PLANTED = dict(
    wait=lambda loss: loss.item(),
    host_scalar=lambda loss: loss + torch.tensor(2.0, device=DEVICE),
    copy=lambda loss: torch.ones(3).to(DEVICE, non_blocking=True),
    storm=lambda loss: [loss + number for number in range(500)],
    stream=lambda loss: on_another_stream(loss),
)


def on_another_stream(loss: torch.Tensor) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        loss.mul_(2)


@HOOKS.register_module()
class Plant(Hook):
    """Does in each step from the third on what no step should do, and what the tests are to find."""

    def __init__(self, kind: str) -> None:
        self.plant = PLANTED[kind]

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if runner.iter >= 2:
            self.plant(outputs['loss'])


def config(name: str, work: str, options: dict, steps: int = 6) -> Config:
    cfg = toy.config(name, str(WORK / work), steps=steps, batch=16, queue=64)
    cfg.model.backbone = dict(type='Small')
    cfg.model.projector.in_channels = 22
    cfg.model.data_preprocessor = dict(type='ViewPreprocessor', mean=(0.0,) * 3, std=(1.0,) * 3)
    cfg.default_hooks.logger.interval = cfg.default_hooks.health.interval = EVERY
    cfg.default_hooks.progress = dict(type='ProgressHook', interval=EVERY)
    cfg.default_hooks.checkpoint.update(interval=100, save_last=False)
    options = {**copy.deepcopy(options), 'custom_hooks': [dict(type='RefuseWaits'), *options.get('custom_hooks', [])]}
    cfg.merge_from_dict(options)
    return cfg


def outcome(cfg: Config, launcher: str = LAUNCHER) -> dict:
    try:
        runner = launch.train(cfg, launcher)
    finally:
        say_on_wait('default')
    model = getattr(runner.model, 'module', runner.model)
    tensors = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    kinds = {value.device.type for name, value in tensors.items() if not name.endswith('_extra_state')}
    assert kinds == {DEVICE}, kinds
    weights = runner._weights()
    refuse = next((hook for hook in runner.hooks if isinstance(hook, RefuseWaits)), None)
    *_, before, after = refuse.copies if refuse else ({}, {})  # of the last step but one, between two log lines
    overflow = next((hook for hook in runner.hooks if isinstance(hook, Overflow)), None)
    losses = torch.tensor(runner.message_hub.get_scalar('train/loss').data[0], device=DEVICE)
    all_reduce(losses, 'mean')
    return dict(
        losses=losses.cpu(),
        weights={name: weights[name].detach().cpu() for name in tensors if get_rank() == 0},
        work={kind: after[kind] - before[kind] for kind in after},
        scaler=runner.optim_wrapper.loss_scaler.state_dict(),
        knn=[float(values.current()) for name, values in runner.message_hub.log_scalars.items() if 'knn' in name],
        skipped=overflow and overflow.skipped([name for name, _ in model.named_parameters()]),
    )


def planted(kind: str) -> dict:
    """A run with a defect: the error that it ends with, or what its steps ask of the device."""
    try:
        return outcome(
            config('mocov2plus_r50_200e.py', kind, {**ON_DEVICE, 'custom_hooks': [dict(type='Plant', kind=kind)]})
        )
    except (RuntimeError, CUDASanitizerErrors) as error:
        return dict(said=f'{type(error).__name__}: {error}')


def heads() -> dict:
    """The loss and the gradients of each head, in a second step that must not wait."""
    import_module('projects.msbreg.msbreg')
    found = {}
    for name, settings in HEADS.items():
        torch.manual_seed(0)
        head = MODELS.build(settings).to(DEVICE)
        rows = torch.randn(5, 8, 6).to(DEVICE).requires_grad_()
        for mode in ('default', 'error'):
            say_on_wait(mode)
            torch.manual_seed(1)
            *views, negatives = rows.unbind()
            loss = head(dict(enumerate(views[:2])), dict(enumerate(views[2:])), unit(negatives))['loss']
            (gradient,) = torch.autograd.grad(loss, rows)
        say_on_wait('default')
        found[name] = dict(loss=loss.detach().cpu(), gradient=gradient.cpu())
    return found


def resumed() -> dict:
    """MoCo v2, whose shuffling draws on the device, in float16: whole, and left and gone on with."""
    found = {}
    for name in ('whole', 'left'):
        cfg = config('mocov2_r50_200e.py', name, {**FLOAT16, 'default_hooks.checkpoint.interval': 3})
        cfg.custom_hooks = cfg.custom_hooks[1:]  # a checkpoint is copied to the host and may wait
        if name == 'left':
            cfg.custom_hooks.append(dict(type='LeaveAt', iteration=4))
        with suppress(resuming.LeftInTheMiddle):
            found[name] = outcome(cfg)
    cfg = config('mocov2_r50_200e.py', 'left', {**FLOAT16, 'resume': True})
    cfg.custom_hooks = cfg.custom_hooks[1:]
    return dict(whole=found['whole'], left=outcome(cfg))


def evaluated() -> dict:
    """k-NN and logistic regression of a fresh backbone."""
    torch.manual_seed(0)
    network = MODELS.build(dict(type='Small'))
    data = [DATASETS.build(dict(type='Shapes', split='val', count=count, size=32)) for count in (64, 32)]
    settings = Extraction((0.0,) * 3, (1.0,) * 3, device=DEVICE)
    train, test = (extract(network, Subset(part, range(len(part))), settings) for part in data)
    fitted = logistic_regression(train, test, strengths=[1e-2, 1.0], device=DEVICE)
    knn = 100 * knn_right(train, test, [5], device=DEVICE)[5].double().mean().item()
    return dict(features=train.x.cpu(), knn=knn, logreg=fitted.scores, strength=fitted.strength)


def main() -> None:
    if 'SOFTGPU' in os.environ:
        enable_cuda_sanitizer()  # it knows which streams have waited for each other
    torch.backends.cudnn.allow_tf32 = False  # the CPU's numbers are float32's
    launch.register()
    trust_mmengine_checkpoints()
    start_processes(LAUNCHER)
    alone = LAUNCHER == 'none'
    quick = SELECTION == 'quick'
    cases = {case: run for case, run in ONE.items() if (case not in SLOW) == quick} if alone else TWO
    if DEVICE == 'cpu':  # whose whole networks ZeRO's runs are compared with
        cases = {case: run for case, run in cases.items() if not case.startswith('zero')}
    if DEVICE == 'cuda' and alone:  # DDP and NCCL on a machine with one GPU as well
        dist.init_process_group('nccl', store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device('cuda', 0))
        os.environ['LOCAL_RANK'] = '0'  # mmengine's DDP asks for it
    ddp = {'bfloat16': 'pytorch'} if DEVICE == 'cuda' else {}
    found = {
        case: outcome(config(name, case, options), ddp.get(case, LAUNCHER)) for case, (name, options) in cases.items()
    }
    if alone and quick:
        found.update(evaluated=evaluated(), resumed=resumed(), heads=heads())
    if alone and quick and DEVICE == 'cuda':
        found['planted'] = {kind: planted(kind) for kind in PLANTED}
    if get_rank() == 0:
        torch.save(found, OUT)
    stop_processes()


with softgpu.Numbers() if 'SOFTGPU' in os.environ else nullcontext():
    main()
