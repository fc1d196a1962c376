"""Runs of mmairl on the software GPU or, to compare with, on the CPU: python runs.py {cuda,cpu} OUT WORK_DIR."""

import os
import sys
from contextlib import nullcontext, suppress
from pathlib import Path

DEVICE, OUT, WORK = sys.argv[1], sys.argv[2], Path(sys.argv[3])
if 'SOFTGPU' in os.environ:
    import softgpu

import resuming  # noqa: E402
import torch  # noqa: E402
import toy  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.dist import all_reduce, get_rank, get_world_size  # noqa: E402
from mmengine.hooks import Hook  # noqa: E402
from torch.utils.data import Subset  # noqa: E402

from mmairl.engine import launch  # noqa: E402
from mmairl.engine.checkpoint import trust_mmengine_checkpoints  # noqa: E402
from mmairl.engine.distributed import start_processes  # noqa: E402
from mmairl.errors import stop_processes  # noqa: E402
from mmairl.evaluation.features import Extraction, extract  # noqa: E402
from mmairl.evaluation.knn import knn_accuracy  # noqa: E402
from mmairl.evaluation.logreg import logistic_regression  # noqa: E402
from mmairl.registry import DATASETS, HOOKS, MODELS  # noqa: E402

LAUNCHER = 'pytorch' if 'RANK' in os.environ else 'none'
EVERY = 4  # iterations between two log lines
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
ONE = {
    'mocov2plus': ('mocov2plus_r50_200e.py', {'custom_hooks': [dict(type='OnlineProbeHook', classes=4, lr=0.5)]}),
    'byol_lars': ('byol_lars_r50_200e.py', {'optim_wrapper.accumulative_counts': 2}),
    'bfloat16': ('byol_r50_200e.py', dict(fast=FAST)),
    'views_on_device': ('mocov2plus_r50_200e.py', ON_DEVICE),
}


def say_on_wait(mode: str) -> None:
    if DEVICE == 'cuda':
        torch.cuda.set_sync_debug_mode(mode)


@HOOKS.register_module()
class RefuseWaits(Hook):
    """From the third step on, when DDP is set up, has torch raise where the host waits between two log lines."""

    priority = 'HIGHEST'

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        step = runner.iter + 1
        between = step > 2 and step % EVERY and step < runner.max_iters
        say_on_wait('error' if between else 'default')


@HOOKS.register_module()
class Defect(Hook):
    """Does in the third step what the tests are to find."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if runner.iter != 2:
            return
        if self.kind == 'wait':
            outputs['loss'].item()
        elif self.kind == 'generator':
            torch.randperm(8, device='cuda', generator=torch.Generator())
        elif self.kind == 'device':
            next(runner.model.parameters()).detach() + torch.ones(1, 1, 1, 1)
        elif self.kind == 'nccl':
            torch.distributed.all_reduce(torch.ones(1))


def config(name: str, work: str, options: dict, steps: int = 6) -> Config:
    cfg = toy.config(name, str(WORK / work), steps=steps, batch=16, queue=64)
    cfg.model.backbone = dict(type='Small')
    cfg.model.projector.in_channels = 22
    cfg.model.data_preprocessor = dict(type='ViewPreprocessor', mean=(0.0,) * 3, std=(1.0,) * 3)
    cfg.default_hooks.logger.interval = cfg.default_hooks.health.interval = EVERY
    cfg.default_hooks.progress = dict(type='ProgressHook', interval=EVERY)
    cfg.default_hooks.checkpoint.update(interval=100, save_last=False)
    options = {**options, 'custom_hooks': [dict(type='RefuseWaits'), *options.get('custom_hooks', [])]}
    cfg.merge_from_dict(options)
    return cfg


def outcome(cfg: Config) -> dict:
    try:
        runner = launch.train(cfg, LAUNCHER)
    finally:
        say_on_wait('default')
    model = getattr(runner.model, 'module', runner.model)
    tensors = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    kinds = {value.device.type for name, value in tensors.items() if not name.endswith('_extra_state')}
    assert kinds == {DEVICE}, kinds
    weights = runner._weights()
    losses = torch.tensor(runner.message_hub.get_scalar('train/loss').data[0], device=DEVICE)
    all_reduce(losses, 'mean')
    return dict(
        losses=losses.cpu(), weights={name: weights[name].detach().cpu() for name in tensors if get_rank() == 0}
    )


def defect(kind: str) -> str:
    """What is said of a defect; empty if nothing."""
    try:
        launch.train(
            config('mocov2plus_r50_200e.py', kind, dict(custom_hooks=[dict(type='Defect', kind=kind)])), LAUNCHER
        )
    except Exception as error:
        return str(error)
    finally:
        say_on_wait('default')
    return ''


def resumed() -> dict:
    """MoCo v2, whose shuffling draws on the device: whole, and left and gone on with."""
    found = {}
    for name in ('whole', 'left'):
        cfg = config('mocov2_r50_200e.py', name, {'default_hooks.checkpoint.interval': 3})
        cfg.custom_hooks = []  # a checkpoint is copied to the host and may wait
        if name == 'left':
            cfg.custom_hooks.append(dict(type='LeaveAt', iteration=4))
        with suppress(resuming.LeftInTheMiddle):
            found[name] = outcome(cfg)['weights']
    cfg = config('mocov2_r50_200e.py', 'left', dict(resume=True))
    cfg.custom_hooks = []
    return dict(whole=found['whole'], left=outcome(cfg)['weights'])


def evaluated() -> dict:
    """k-NN and logistic regression of a fresh backbone."""
    torch.manual_seed(0)
    network = MODELS.build(dict(type='Small'))
    data = [DATASETS.build(dict(type='Shapes', split='val', count=count, size=32)) for count in (64, 32)]
    settings = Extraction((0.0,) * 3, (1.0,) * 3, device=DEVICE)
    train, test = (extract(network, Subset(part, range(len(part))), settings) for part in data)
    fitted = logistic_regression(train, test, strengths=[1e-2, 1.0], device=DEVICE)
    knn = knn_accuracy(train, test, [5], device=DEVICE)[5]
    return dict(features=train.x.cpu(), knn=knn, logreg=fitted.scores, strength=fitted.strength)


def main() -> None:
    torch.backends.cudnn.allow_tf32 = False  # the CPU's numbers are float32's
    launch.register()
    trust_mmengine_checkpoints()
    start_processes(LAUNCHER)
    cases = ONE if LAUNCHER == 'none' else ('mocov2plus', 'bfloat16')
    found = {case: outcome(config(ONE[case][0], case, ONE[case][1])) for case in cases}
    if DEVICE == 'cuda':
        kinds = ('wait', 'generator', 'device') if get_world_size() == 1 else ('nccl',)
        found['defects'] = {kind: defect(kind) for kind in kinds}
    if LAUNCHER == 'none':
        found.update(evaluated=evaluated(), resumed=resumed())
    if get_rank() == 0:
        torch.save(found, OUT)
    stop_processes()


with softgpu.Numbers() if 'SOFTGPU' in os.environ else nullcontext():
    main()
