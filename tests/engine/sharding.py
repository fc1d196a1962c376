"""Train toy runs under DDP and under strategies, in the two processes of test_strategies.py.

As a script with the arguments FOLDER SUITE, this file saves the results in FOLDER/SUITE.pth.
"""

import contextlib
import copy
import sys
from pathlib import Path

import torch
from harness import resume as resuming
from harness import toy
from mmengine.config import Config
from mmengine.dist import get_rank

from mmairl.apis.sample import PATH
from mmairl.checkpoints.load import load_checkpoint
from mmairl.engine import run
from mmairl.engine.distributed import start_processes
from mmairl.models.processes import own_parts
from mmairl.signals import stop_processes

# With the usual eps, rounding errors in gradients that should be 0 would become steps of Adam.
ADAMW = dict(type='AdamW', lr=1e-3, weight_decay=0.05, eps=1e-3, _delete_=True)
VIT = dict(
    type='TimmBackbone',
    name='vit_tiny_patch16_224',
    img_size=32,
    patch_size=8,
    embed_dim=16,
    depth=2,
    num_heads=2,
    tokens=True,
)
TEACHER = dict(
    type='mmpretrain.ResNet',
    depth=18,
    stem_channels=16,
    base_channels=16,
    init_cfg=dict(type='PretrainedBackbone', checkpoint=str(PATH)),
    _delete_=True,
)
# Each name stands for a config and changes to it.
CASES = {
    'lars': ('mocov2plus_lars_r50_200e.py', {'default_hooks.health.interval': 1}),
    'adamw': (
        'byol_r50_200e.py',
        {
            'optim_wrapper.optimizer': ADAMW,
            'optim_wrapper.accumulative_counts': 2,
            'optim_wrapper.clip_grad': dict(max_norm=0.05),
        },
    ),
    'sgd': ('mocov2plus_r50_200e.py', {'default_hooks.health.interval': 1}),
    'bfloat16': ('byol_r50_200e.py', {'optim_wrapper.dtype': 'bfloat16'}),
    # Adapters, an anchor and a frozen teacher.
    'adapted': (
        'distill/r50_from_dinov2_vits14.py',
        {
            'model.backbone': dict(VIT, lora=2, _delete_=True),
            'model.projector': dict(in_channels=16, out_channels=128),
            'model.teacher': dict(backbone=TEACHER, patches=1.0),
            'model.gram': 1.0,
            'optim_wrapper.optimizer': ADAMW,
        },
    ),
}
# These cases run under DDP and under a strategy, and are compared.
SUITES = {
    'zero': [('lars', 'zero1'), ('lars', 'zero3'), ('adamw', 'zero2'), ('bfloat16', 'zero2')],
    'adapted': [('adapted', 'zero2'), ('adapted', 'zero3')],
    'deepspeed': [
        ('sgd', 'deepspeed2'),
        ('adamw', 'deepspeed1'),
        ('adamw', 'deepspeed2_offload'),
        ('bfloat16', 'deepspeed2'),
    ],
}


def config(case: str, work_dir: str, strategy: str | None = None, **options) -> Config:
    """Return the toy config of a case, with a backbone of two blocks."""
    name, changes = CASES[case]
    cfg = toy.config(name, work_dir, steps=4, batch=16, queue=32)
    cfg.model.backbone = dict(type='Small')
    cfg.model.projector.in_channels = 22
    options = copy.deepcopy({**changes, **options})
    cfg.total_batch_size *= options.get('optim_wrapper.accumulative_counts', 1)
    cfg.fast = dict(channels_last=False)
    if strategy:
        cfg.strategy = run.strategy_named(strategy)
    cfg.merge_from_dict(options)
    return cfg


def outcome(cfg: Config) -> dict:
    """Train, and return parts of the last checkpoint, the losses, and this process's share of the weights."""
    runner = run.train(cfg, 'pytorch')
    weights = list(runner.model.parameters())
    share = sum(part.numel() for part in own_parts(weights)) / sum(
        weight.numel() for weight in weights
    )
    losses = torch.tensor(runner.message_hub.get_scalar('train/loss').data[0])
    if get_rank():
        return {}
    saved = load_checkpoint(Path(runner.work_dir, 'last_checkpoint').read_text())
    return dict(
        losses=losses, share=share, state_dict=saved['state_dict'], optimizer=saved['optimizer']
    )


def interrupted(case: str, strategy: str, work_dir: str) -> dict:
    """Leave a run after two steps, and resume it without a strategy."""
    cfg = config(case, work_dir, strategy, custom_hooks=[dict(type='LeaveAt', iteration=3)])
    with contextlib.suppress(resuming.LeftInTheMiddle):
        run.train(cfg, 'pytorch')
    return outcome(config(case, work_dir, resume=True))


if __name__ == '__main__':
    folder, suite = sys.argv[1:]
    run.register()
    start_processes('pytorch')
    results = {}
    for case, strategy in SUITES[suite]:
        for kind in (None, strategy):
            if f'{case}/{kind}' not in results:
                results[f'{case}/{kind}'] = outcome(config(case, f'{folder}/{case}_{kind}', kind))
    case, strategy = SUITES[suite][0]
    results[f'{case}/resumed'] = interrupted(case, strategy, f'{folder}/resumed_{suite}')
    if get_rank() == 0:
        torch.save(results, Path(folder) / f'{suite}.pth')
    stop_processes()
