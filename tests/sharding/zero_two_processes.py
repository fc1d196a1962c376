"""Run under torchrun by test_zero.py: the same runs under DDP and under ZeRO, and what came out of each."""

import contextlib
import copy
import sys
from unittest import mock

import resuming
import torch
import toy
from mmengine.config import Config
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from torch import Tensor

from mmairl.engine import launch
from mmairl.engine.checkpoint import copied, load_checkpoint, trust_mmengine_checkpoints
from mmairl.engine.distributed import start_processes
from mmairl.errors import stop_processes
from mmairl.hooks import ExactCheckpointHook
from mmairl.registry import HOOKS
from mmairl.sharding.zero import whole_weights

PROBE = dict(type='OnlineProbeHook', classes=4, lr=0.5)
DATA = {part: dict(type='Shapes', split='val', count=count, size=32) for part, count in (('train', 49), ('test', 24))}
CASES = {
    'mocov2plus': {},
    'mocov2plus_lars': {'custom_hooks': [PROBE], 'default_hooks.health.interval': 1},
    'byol': {},
    'knn': {
        'custom_hooks': [dict(type='OnlineKNNHook', interval=1, **DATA)],
        'model.data_preprocessor': dict(type='ViewPreprocessor', mean=(0.0,) * 3, std=(1.0,) * 3, _delete_=True),
    },
    'byol_lars': {},
    # With the usual eps, Adam makes steps of the rounding errors in gradients that are 0.
    'adamw': {
        'optim_wrapper.optimizer': dict(type='AdamW', lr=1e-3, weight_decay=0.05, eps=1e-3, _delete_=True),
        'optim_wrapper.paramwise_cfg': dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
        'optim_wrapper.accumulative_counts': 2,
        'optim_wrapper.clip_grad': dict(max_norm=0.05),
        'fast': dict(checkpointing=True),
    },
    'msbreg': {'model.head.terms': [dict(type='SingularValueTerm')]},
    'poisoned': {'custom_hooks': [dict(type='Poison', iteration=3)]},
    'autocast': {'optim_wrapper.dtype': 'bfloat16'},
}
FILES = dict(
    adamw='byol_r50_200e.py',
    knn='byol_r50_200e.py',
    msbreg='../projects/msbreg/configs/msbreg_k2_r50_300e.py',
    poisoned='mocov2plus_r50_200e.py',
    autocast='byol_r50_200e.py',
)
RUNS = {
    'mocov2plus': ('zero2',),
    'mocov2plus_lars': ('zero1', 'zero2', 'zero3'),
    'byol_lars': ('zero3',),
    'adamw': ('zero1', 'zero2_offload', 'zero3'),
    'msbreg': ('zero3_offload',),
    'poisoned': ('zero3',),
    'autocast': ('zero2',),
    'knn': ('zero3',),
}
BF16 = dict(type='ZeroStrategy', zero_optimization=dict(stage=3), bf16=dict(enabled=True))


@HOOKS.register_module(force=True)
class Poison(Hook):
    """Makes one process's images of one iteration not a number."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def before_train_iter(self, runner, batch_idx: int, data_batch: dict | None = None) -> None:
        if runner.iter + 1 == self.iteration and get_rank() == 1:
            data_batch['inputs'][0].fill_(float('nan'))


def config(case: str, work_dir: str, strategy: str | dict | None = None, steps: int = 5, **options) -> Config:
    """A framework at toy size, on batches of 16 images."""
    cfg = toy.config(FILES.get(case, f'{case}_r50_200e.py'), work_dir, steps=steps, batch=16, queue=32)
    cfg.model.backbone = dict(type='Small')
    cfg.model.projector.in_channels = 22
    cfg.default_hooks.checkpoint.update(interval=steps, save_last=True)
    options = {**CASES[case], **options}
    cfg.total_batch_size *= options.get('optim_wrapper.accumulative_counts', 1)
    if strategy:
        cfg.strategy = launch.strategy_named(strategy) if isinstance(strategy, str) else strategy
    cfg.merge_from_dict(options)
    return cfg


def outcome(runner) -> dict:
    """What a run's last checkpoint holds, and its losses."""
    losses = torch.tensor(runner.message_hub.get_scalar('train/loss').data[0])
    if get_rank() != 0:
        return {}
    saved = load_checkpoint(runner.message_hub.get_info('last_ckpt'))
    parts = {part: saved[part] for part in ('state_dict', 'optimizer', 'online_probe') if part in saved}
    scalars = {name: history.data[0] for name, history in runner.message_hub.log_scalars.items()}
    health = {name: torch.tensor(values) for name, values in scalars.items() if name.startswith('health/')}
    health.pop('health/data_share', None)  # a time
    parts['knn'] = scalars.get('train/knn_accuracy', torch.zeros(0)).tolist()
    return dict(losses=losses, health=health, skipped=runner.message_hub.get_info('skipped_steps', 0), **parts)


def equal_runs(work_dir: str) -> dict:
    """Each framework under DDP and under ZeRO."""
    found = {}
    for case, strategies in RUNS.items():
        for strategy in (None, *strategies):
            runner = launch.train(config(case, f'{work_dir}/{case}_{strategy}', strategy), 'pytorch')
            found[f'{case}/{strategy}'] = outcome(runner)
    with mock.patch('mmairl.optim.lars.norms', own_norms):
        wrong = launch.train(config('mocov2plus_lars', f'{work_dir}/wrong', 'zero2'), 'pytorch')
        found['mocov2plus_lars/wrong'] = outcome(wrong)
    return found


def own_norms(tensors: list[Tensor]) -> Tensor:
    """The mistake that LARS on shards invites: the norm of a process's rows for that of the layer."""
    return torch.stack([tensor.to_local().norm() for tensor in tensors])


def resumed_runs(work_dir: str) -> None:
    """Runs left in the middle and gone on with, beside ones that were left alone."""
    for name, strategy in dict(zero2='zero2', bf16=BF16).items():
        for leave_at in (None, 5):
            cfg = config('mocov2plus_lars', f'{work_dir}/{name}_{"whole" if leave_at is None else "left"}', strategy, 6)
            cfg.default_hooks.checkpoint.update(interval=2, max_keep_ckpts=2)
            again = copy.deepcopy(cfg)
            if leave_at is not None:
                cfg.custom_hooks.append(dict(type='LeaveAt', iteration=leave_at))
            with contextlib.suppress(resuming.LeftInTheMiddle):
                launch.train(cfg, 'pytorch')
        again.merge_from_dict(dict(resume=True, experiment_name=f'{again.experiment_name}_again'))
        launch.train(again, 'pytorch')


@HOOKS.register_module(force=True)
class Collect(Hook):
    """Keeps the momentum and the whole weights after each step."""

    priority = 'LOWEST'

    def before_train(self, runner) -> None:
        self.weights, self.momenta = [copied(dict(whole_weights(runner.model)))], []

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        self.weights.append(copied(dict(whole_weights(runner.model))))
        self.momenta.append(float(runner.message_hub.get_scalar('train/momentum').current()))


def bf16_run(work_dir: str) -> dict:
    """Student and teacher after each step with weights in bfloat16."""
    cfg = config('byol', f'{work_dir}/followed', BF16, custom_hooks=[dict(type='Collect')])
    runner = launch.train(cfg, 'pytorch')
    hook = next(hook for hook in runner.hooks if isinstance(hook, Collect))
    return dict(weights=hook.weights, momenta=hook.momenta, **outcome(runner))


def reloaded(work_dir: str) -> dict:
    """What a checkpoint of two processes is after it was loaded by one, in each stage and in none."""
    found = {}
    for strategy in (None, 'zero1', 'zero3', 'zero3_offload'):
        cfg = config('mocov2plus_lars', f'{work_dir}/reloaded_{strategy}', strategy, 6)
        cfg.merge_from_dict(dict(resume=True, load_from=f'{work_dir}/zero2_whole/iter_6.pth', launcher='pytorch'))
        launch.share_batch(cfg, 1)
        runner = launch.build(cfg)
        runner.param_schedulers = runner.build_param_scheduler(runner.param_schedulers)
        runner.load_or_resume()
        next(hook for hook in runner.hooks if isinstance(hook, ExactCheckpointHook)).states = []
        found[str(strategy)] = runner.snapshot(dict(epoch=0, iter=6), True, True)
    return found


if __name__ == '__main__':
    what, out, work_dir = sys.argv[1:]
    Config.pretty_text = property(lambda cfg: repr(cfg.to_dict()))  # formatting it takes longer than the runs
    launch.register()
    trust_mmengine_checkpoints()
    start_processes('pytorch')
    if what == 'equal':
        found = equal_runs(work_dir)
    elif what == 'reload':
        found = reloaded(work_dir)
    else:
        resumed_runs(work_dir)
        found = bf16_run(work_dir)
    if get_rank() == 0:
        torch.save(found, out)
    stop_processes()
