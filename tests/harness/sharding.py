"""Runs under DDP and under sharding strategies in two processes, for the tests of these strategies.

The script takes a file for the results, a folder and a suite ('zero' or 'deepspeed'). With a folder alone, the script
trains until a process is killed, and finishes the run when the launcher starts it again.
"""

import contextlib
import copy
import os
import signal
import sys
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from mmengine.config import Config
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils._pytree import tree_leaves

from harness import resume as resuming
from harness import toy
from mmairl.engine import run
from mmairl.engine.checkpoint import load_checkpoint, trust_mmengine_checkpoints
from mmairl.engine.distributed import start_processes
from mmairl.engine.hooks.saving import ExactCheckpointHook
from mmairl.engine.optim.autocast import AutocastOptimWrapper
from mmairl.models.backbones import blocks
from mmairl.models.processes import own_parts
from mmairl.registry import HOOKS
from mmairl.signals import stop_processes

# With the usual eps, rounding errors in gradients that should be 0 would become steps of Adam.
ADAMW = dict(type='AdamW', lr=1e-3, weight_decay=0.05, eps=1e-3, _delete_=True)
ADAMW_STEPS = {
    'optim_wrapper.optimizer': ADAMW,
    'optim_wrapper.paramwise_cfg': dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
    'optim_wrapper.accumulative_counts': 2,
    'optim_wrapper.clip_grad': dict(max_norm=0.05),
}
HEALTH = {'default_hooks.health.interval': 1}
PLAIN_IMAGES = dict(type='ViewPreprocessor', mean=(0.0,) * 3, std=(1.0,) * 3, _delete_=True)
# Each name stands for a config and changes to it.
CASES = {
    'mocov2plus': ('mocov2plus_r50_200e.py', HEALTH),
    'mocov2plus_lars': ('mocov2plus_lars_r50_200e.py', HEALTH),
    'byol': ('byol_r50_200e.py', {}),
    'byol_lars': ('byol_lars_r50_200e.py', {}),
    'adamw': ('byol_r50_200e.py', {**ADAMW_STEPS, 'fast': dict(checkpointing=True)}),
    'vit': ('vit/mocov2plus_vit_s16_300e.py', {**ADAMW_STEPS, **HEALTH}),
    'msbreg': (
        '../projects/msbreg/configs/msbreg_k2_r50_300e.py',
        {'model.head.terms': [dict(type='SingularValueTerm')]},
    ),
    'poisoned': (
        'mocov2plus_r50_200e.py',
        {
            'custom_hooks': [
                dict(type='Spoil', iterations=[3], rank=1),
            ],
            'evaluation': toy.KNN,
            'model.data_preprocessor': PLAIN_IMAGES,
            **HEALTH,
        },
    ),
    'bfloat16': ('byol_r50_200e.py', {'optim_wrapper.dtype': 'bfloat16'}),
    'float16': (
        'byol_r50_200e.py',
        {
            'optim_wrapper.dtype': 'float16',
            'optim_wrapper.optimizer.lr': 0.05,
            'optim_wrapper.clip_grad': dict(max_norm=0.05),
            **HEALTH,
        },
    ),
}
# These cases run under DDP and under a strategy, and are compared.
EQUAL = {
    'zero': [
        ('mocov2plus_lars', 'zero1'),
        ('mocov2plus_lars', 'zero3'),
        ('adamw', 'zero1'),
        ('adamw', 'zero2_offload'),
        ('poisoned', 'zero3'),
        ('bfloat16', 'zero2'),
        ('msbreg', 'zero3_offload'),
    ],
    'deepspeed': [
        ('mocov2plus', 'deepspeed2'),
        ('byol', 'deepspeed1'),
        ('vit', 'deepspeed1'),
        ('vit', 'deepspeed2_offload'),
        ('poisoned', 'deepspeed2_offload'),
        ('poisoned', 'deepspeed2'),
        ('bfloat16', 'deepspeed2'),
        ('float16', 'deepspeed1'),
    ],
}
BF16 = dict(type='ZeroStrategy', zero_optimization=dict(stage=3), bf16=dict(enabled=True))


def config(case: str, work_dir: str, strategy: str | dict | None = None, steps: int = 5, **options) -> Config:
    """Return the toy config of a case, with batches of 16 images."""
    name, changes = CASES[case]
    cfg = toy.config(name, work_dir, steps=steps, batch=16, queue=32)
    if case != 'vit':
        cfg.model.backbone = dict(type='Small')
        cfg.model.projector.in_channels = 22
    cfg.default_hooks.checkpoint.interval = steps
    # mmengine removes `_delete_` from the options, so a copy is merged.
    options = copy.deepcopy({**changes, **options})
    cfg.total_batch_size *= options.get('optim_wrapper.accumulative_counts', 1)
    if strategy:
        cfg.strategy = run.strategy_named(strategy) if isinstance(strategy, str) else strategy
    cfg.merge_from_dict(options)
    return cfg


def outcome(runner: Runner) -> dict:
    """Return parts of a run's last checkpoint, and its losses, health values, k-NN accuracies and skipped steps.

    Ranks other than 0 return {}.
    """
    losses = torch.tensor(runner.message_hub.get_scalar('train/loss').data[0])
    if get_rank() != 0:
        return {}
    saved = load_checkpoint(runner.message_hub.get_info('last_ckpt'))
    parts = ('state_dict', 'optimizer')
    content = {part: saved[part] for part in parts if part in saved}
    scalars = {name: history.data[0] for name, history in runner.message_hub.log_scalars.items()}
    health = {name: torch.tensor(values) for name, values in scalars.items() if name.startswith('health/')}
    health.pop('health/data_share', None)  # This value is a time, which differs between runs
    skipped = runner.message_hub.get_info('skipped_steps', 0)
    return dict(losses=losses, health=health, skipped=skipped, **content)


def equal_runs(work_dir: str, suite: str) -> dict[str, dict]:
    """Run each case of a suite under DDP and under its strategies. Return the results by case and strategy."""
    outcomes = {}
    for case, strategy in dict.fromkeys([(case, None) for case, _ in EQUAL[suite]] + EQUAL[suite]):
        cfg = config(case, f'{work_dir}/{case}_{strategy}', strategy)
        outcomes[f'{case}/{strategy}'] = outcome(run.train(cfg, 'pytorch'))
    return outcomes


def assert_equal(sharded: dict, plain: dict) -> None:
    """Check that a run under a strategy equals the run under DDP.

    Weights, queue and optimizer must agree to 1e-6. Losses are sums over images, so only their relative error is
    limited. Health values, such as the norm of a stage or the teacher's distance, must be those of whole layers instead
    of shards.
    """
    torch.testing.assert_close(sharded['losses'], plain['losses'], atol=0, rtol=2e-6, equal_nan=True)
    assert sharded['skipped'] == plain['skipped']
    assert list(sharded['state_dict']) == list(plain['state_dict'])
    for part in ('state_dict', 'optimizer'):
        assert_close(sharded.get(part), plain.get(part))
    torch.testing.assert_close(sharded['health'], plain['health'], atol=1e-6, rtol=1e-4, equal_nan=True)
    weights = plain['state_dict']
    students = [key for key in weights if f'teacher.{key}' in weights]
    moved = max((weights[f'teacher.{key}'] - weights[key]).abs().max() for key in students)
    assert moved > 1e-4, 'the compared runs have learned nothing'


def assert_close(tree: object, plain: object) -> None:
    """Check that two trees have equal leaves. Tensors must agree to 1e-6."""
    for one, other in zip(tree_leaves(tree), tree_leaves(plain), strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)
        else:
            assert one == other


def load(path: Path) -> dict:
    """Load a file as a program with only torch and mmengine would."""
    trust_mmengine_checkpoints()
    return torch.load(path, weights_only=True)


def overflow() -> list[tuple[bool, float, list[float]]]:
    """Take a float16 step in which only the gradient of the second process's part of the weights overflows.

    Return, for each process, whether it took the step, its loss scale and its part of the weights.
    """
    mesh = init_device_mesh('cpu', (2,))
    weight = nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Shard(0)]))
    wrapper = AutocastOptimWrapper(torch.optim.SGD([weight], lr=1.0), dtype='float16')
    # These factors are finite and overflow when the loss is scaled.
    factors = distribute_tensor(torch.tensor([1.0, 1.0, 1.0, 1e38]), mesh, [Shard(0)])
    wrapper.update_params((weight * factors).sum().full_tensor())
    state = (wrapper.stepped, wrapper.loss_scaler.get_scale(), weight.to_local().tolist())
    states = [None, None]
    dist.all_gather_object(states, state)
    return states


def resumed(work_dir: str, case: str, strategy: str) -> None:
    """Run a case twice: without interruption, and interrupted and resumed."""
    for leave_at in (None, 5):
        part = 'whole' if leave_at is None else 'interrupted'
        cfg = config(case, f'{work_dir}/{part}', strategy, 6)
        cfg.default_hooks.checkpoint.update(interval=2, max_keep_ckpts=2)
        again = copy.deepcopy(cfg)
        if leave_at is not None:
            cfg.setdefault('custom_hooks', []).append(dict(type='LeaveAt', iteration=leave_at))
        with contextlib.suppress(resuming.LeftInTheMiddle):
            run.train(cfg, 'pytorch')
    again.resume = True
    run.train(again, 'pytorch')


def resume_alone(case: str, checkpoint: Path, work_dir: Path, strategy: str | None) -> dict:
    """Restore a checkpoint in this process alone. Return the checkpoint that this process would save."""
    cfg = config(case, str(work_dir), strategy, 6)
    cfg.merge_from_dict(dict(resume=True, load_from=str(checkpoint)))
    run.complete_config(cfg, 'none')
    try:
        runner = run.build_runner(cfg)
        runner.param_schedulers = runner.build_param_scheduler(runner.param_schedulers)
        runner.load_or_resume()
        next(hook for hook in runner.hooks if isinstance(hook, ExactCheckpointHook)).states = []
        return runner.snapshot(dict(epoch=0, iter=6), True, True)
    finally:
        if dist.is_initialized():  # A strategy may have created a process group
            dist.destroy_process_group()


def held(work_dir: str, strategy: str) -> tuple[float, int]:
    """Return this process's fraction of all weights, and the number of block weights that are unsharded after a forward
    pass.
    """
    cfg = config('byol', f'{work_dir}/held_{strategy}', strategy)
    run.share_batch(cfg, 2)
    runner = run.build_runner(cfg)
    weights = list(runner.model.parameters())
    share = sum(part.numel() for part in own_parts(weights)) / sum(w.numel() for w in weights)
    batch = next(iter(runner.train_dataloader))
    runner.model(**runner.model.data_preprocessor(batch, training=True), mode='loss')
    inner = [weight for block in blocks(runner.model.backbone) for weight in block.parameters()]
    return share, sum(not isinstance(weight, DTensor) for weight in inner)


def exchanges(work_dir: str, strategy: str) -> int:
    """Return how often five batches exchange gradients. Two batches make an optimizer step."""
    cfg = config('adamw', f'{work_dir}/exchanges_{strategy}', strategy)
    with mock.patch.object(dist, 'reduce_scatter_tensor', wraps=dist.reduce_scatter_tensor) as calls:
        run.train(cfg, 'pytorch')
    return calls.call_count


def zero_suite(work_dir: str) -> dict:
    outcomes = dict(
        bf16=outcome(run.train(config('byol', f'{work_dir}/bf16', BF16), 'pytorch')),
        overflow=overflow(),
        held=[held(work_dir, strategy) for strategy in ('zero2', 'zero3')],
        exchanges=[exchanges(work_dir, strategy) for strategy in ('zero1', 'zero2')],
    )
    resumed(work_dir, 'mocov2plus_lars', 'zero2')
    return outcomes


def deepspeed_suite(work_dir: str) -> dict:
    from deepspeed.ops.op_builder.builder import OpBuilder

    resumed(work_dir, 'mocov2plus', 'deepspeed2')
    switched(work_dir)
    for stage, half in ((2, True), (3, False)):
        save_folder(Path(work_dir), stage, half)
    return dict(compiled=list(OpBuilder._loaded_ops))


def switched(work_dir: str) -> None:
    """Run eight iterations under DDP. Run them again, with a change of strategy every two iterations."""
    cfg = config('vit', f'{work_dir}/ddp', None, 8)
    run.train(cfg, 'pytorch')
    for strategy, leave_at in (('deepspeed2', 3), ('zero2', 5), (None, 7), ('deepspeed1', None)):
        cfg = config('vit', f'{work_dir}/switched', strategy, 8)
        cfg.default_hooks.checkpoint.interval = 2
        cfg.resume = True
        if leave_at is not None:
            cfg.custom_hooks = [dict(type='LeaveAt', iteration=leave_at)]
        with contextlib.suppress(resuming.LeftInTheMiddle):
            run.train(cfg, 'pytorch')


def save_folder(work_dir: Path, stage: int, half: bool) -> None:
    """Save a folder as mmengine's DeepSpeedStrategy does, and a file with the whole weights, which DeepSpeed gathers."""
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.GroupNorm(1, 5), nn.Linear(5, 3))
    model[1].register_buffer('count', torch.ones(3))
    model[2].requires_grad_(False)
    groups = [dict(params=[*model[0].parameters()]), dict(params=[*model[1].parameters()])]
    settings = dict(
        train_micro_batch_size_per_gpu=4,
        zero_optimization=dict(stage=stage),
        bf16=dict(enabled=half),
    )
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    frozen = copy.deepcopy(model[2])
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]
    expected = frozen.to(torch.bfloat16 if half else torch.float32).state_dict(prefix='2.')
    engine.backward(engine(torch.ones(4, 3, dtype=torch.bfloat16 if half else None)).float().square().mean())
    engine.step()
    expected |= {
        name: safe_get_full_fp32_param(param) for name, param in model.named_parameters() if param.requires_grad
    }
    engine.save_checkpoint(work_dir / f'stage{stage}', 'epoch_1.pth', dict(meta=dict(epoch=1)), save_latest=False)
    if get_rank() == 0:
        torch.save(expected, work_dir / f'stage{stage}.pth')


@HOOKS.register_module(force=True)
class KillAt(Hook):
    """Kill the second process before this iteration."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter + 1 == self.iteration and get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(work_dir: str) -> None:
    """Run until the second process is killed. When the launcher restarts the processes, resume the run."""
    cfg = config('mocov2plus', work_dir, 'deepspeed2', 6)
    cfg.default_hooks.checkpoint.interval = 2
    if int(os.environ['TORCHELASTIC_RESTART_COUNT']):
        cfg.resume = True
    else:
        cfg.custom_hooks = [dict(type='KillAt', iteration=5)]
    run.train(cfg, 'pytorch')


SUITES = dict(zero=zero_suite, deepspeed=deepspeed_suite)

if __name__ == '__main__':
    run.register()
    trust_mmengine_checkpoints()
    start_processes('pytorch')
    if len(sys.argv) == 2:
        killed(sys.argv[1])
    else:
        out, work_dir, suite = sys.argv[1:]
        results = {**equal_runs(work_dir, suite), **SUITES[suite](work_dir)}
        if get_rank() == 0:
            torch.save(results, out)
    stop_processes()
