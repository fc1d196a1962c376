"""Run by test_zero.py in two processes: the same runs under DDP and under ZeRO, and what came out of each."""

import contextlib
import copy
import sys

import torch
import torch.distributed as dist
from harness import resume as resuming
from harness import toy
from mmengine.config import Config
from mmengine.dist import get_rank
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from mmairl.engine import run
from mmairl.engine.checkpoint import load_checkpoint, trust_mmengine_checkpoints
from mmairl.engine.distributed import start_processes
from mmairl.engine.optim.autocast import AutocastOptimWrapper
from mmairl.models.backbones import blocks
from mmairl.models.processes import own_parts
from mmairl.signals import stop_processes

PROBE = dict(type='OnlineProbeHook', classes=4, lr=0.5)
CASES = {
    'mocov2plus_lars': {'custom_hooks': [PROBE], 'default_hooks.health.interval': 1},
    'byol': {},
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
    'poisoned': {
        'custom_hooks': [dict(type='Spoil', iterations=[3], rank=1), dict(type='OnlineKNNHook', interval=1)],
        'evaluation': toy.KNN,
        'model.data_preprocessor': dict(type='ViewPreprocessor', mean=(0.0,) * 3, std=(1.0,) * 3, _delete_=True),
    },
    'autocast': {'optim_wrapper.dtype': 'bfloat16'},
}
FILES = dict(
    adamw='byol_r50_200e.py',
    msbreg='../projects/msbreg/configs/msbreg_k2_r50_300e.py',
    poisoned='mocov2plus_r50_200e.py',
    autocast='byol_r50_200e.py',
)
# Each framework under DDP and under these strategies.
EQUAL = [
    ('mocov2plus_lars', 'zero1'),
    ('mocov2plus_lars', 'zero3'),
    ('adamw', 'zero1'),
    ('adamw', 'zero2_offload'),
    ('poisoned', 'zero3'),
    ('autocast', 'zero2'),
    ('msbreg', 'zero3_offload'),
]
BF16 = dict(type='ZeroStrategy', zero_optimization=dict(stage=3), bf16=dict(enabled=True))


def config(case: str, work_dir: str, strategy: str | dict | None = None, steps: int = 5, **options) -> Config:
    """A framework at toy size, on batches of 16 images."""
    cfg = toy.config(FILES.get(case, f'{case}_r50_200e.py'), work_dir, steps=steps, batch=16, queue=32)
    cfg.model.backbone = dict(type='Small')
    cfg.model.projector.in_channels = 22
    cfg.default_hooks.checkpoint.interval = steps
    options = copy.deepcopy({**CASES[case], **options})  # mmengine takes `_delete_` out of them
    cfg.total_batch_size *= options.get('optim_wrapper.accumulative_counts', 1)
    if strategy:
        cfg.strategy = run.strategy_named(strategy) if isinstance(strategy, str) else strategy
    cfg.merge_from_dict(options)
    return cfg


def outcome(runner) -> dict:
    """Return what a run's last checkpoint holds, and its losses."""
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


def equal(work_dir: str, case: str, strategy: str | None) -> dict:
    return outcome(run.train(config(case, f'{work_dir}/{case}_{strategy}', strategy), 'pytorch'))


def overflow() -> list[tuple[bool, float, list[float]]]:
    """A float16 step that overflows in the second process's rows alone: of each whether it stepped, its scale and its rows."""
    mesh = init_device_mesh('cpu', (2,))
    weight = nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Shard(0)]))
    wrapper = AutocastOptimWrapper(torch.optim.SGD([weight], lr=1.0), dtype='float16')
    factors = distribute_tensor(torch.tensor([1.0, 1.0, 1.0, 1e38]), mesh, [Shard(0)])  # finite before it is scaled
    wrapper.update_params((weight * factors).sum().full_tensor())
    found = [None, None]
    dist.all_gather_object(found, (wrapper.stepped, wrapper.loss_scaler.get_scale(), weight.to_local().tolist()))
    return found


def resumed(work_dir: str) -> None:
    """A run left in the middle and gone on with, beside one that was left alone."""
    for leave_at in (None, 5):
        part = 'whole' if leave_at is None else 'left'
        cfg = config('mocov2plus_lars', f'{work_dir}/{part}', 'zero2', 6)
        cfg.default_hooks.checkpoint.update(interval=2, max_keep_ckpts=2)
        again = copy.deepcopy(cfg)
        if leave_at is not None:
            cfg.custom_hooks.append(dict(type='LeaveAt', iteration=leave_at))
        with contextlib.suppress(resuming.LeftInTheMiddle):
            run.train(cfg, 'pytorch')
    again.resume = True
    run.train(again, 'pytorch')


def held(work_dir: str, strategy: str) -> tuple[float, int]:
    """The part of all weights that a process holds, and how many of the blocks' are whole behind the forward pass."""
    cfg = config('byol', f'{work_dir}/held_{strategy}', strategy)
    run.share_batch(cfg, 2)
    runner = run.build_runner(cfg)
    weights = list(runner.model.parameters())
    part = sum(own.numel() for own in own_parts(weights)) / sum(weight.numel() for weight in weights)
    runner.model(**runner.model.data_preprocessor(next(iter(runner.train_dataloader)), training=True), mode='loss')
    inner = [weight for block in blocks(runner.model.backbone) for weight in block.parameters()]
    return part, sum(not isinstance(weight, DTensor) for weight in inner)


if __name__ == '__main__':
    out, work_dir = sys.argv[1:]
    run.register()
    trust_mmengine_checkpoints()
    start_processes('pytorch')
    pairs = sorted({(case, None) for case, _ in EQUAL}) + EQUAL
    found = {f'{case}/{strategy}': equal(work_dir, case, strategy) for case, strategy in pairs}
    found['bf16'] = outcome(run.train(config('byol', f'{work_dir}/bf16', BF16), 'pytorch'))
    found['overflow'] = overflow()
    found['held'] = [held(work_dir, strategy) for strategy in ('zero2', 'zero3')]
    resumed(work_dir)
    if get_rank() == 0:
        torch.save(found, out)
    stop_processes()
