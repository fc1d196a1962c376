"""Run under torchrun by tests/engine/test_fast.py: a short run for each way to make it fast; rank 0 saves the weights."""

import sys

import torch
import toy

from mmairl.engine import launch
from mmairl.engine.distributed import start_processes
from mmairl.errors import stop_processes

WAYS = {
    'plain': {},
    'layout': dict(channels_last=True),
    'recomputed': dict(checkpointing=True),
    'compiled': dict(compile=dict(backend='aot_eager')),
    'bfloat16': dict(precision='bfloat16', channels_last=True, fused=True),
}

if __name__ == '__main__':
    out, work_dir = sys.argv[1:]
    launch.register()
    start_processes('pytorch')
    saved = {}
    for name, fast in WAYS.items():
        dtype = 'float32' if name == 'bfloat16' else 'float64'
        torch.set_default_dtype(getattr(torch, dtype))
        cfg = toy.config('mocov2plus_r50_200e.py', f'{work_dir}/{name}', steps=2, batch=8, queue=16, dtype=dtype)
        cfg.default_hooks.checkpoint.update(interval=100, save_last=False)
        cfg.merge_from_dict(dict(fast=fast))
        runner = launch.train(cfg, 'pytorch')
        saved[name] = runner.model.module.state_dict()
    if runner.rank == 0:
        torch.save(saved, out)
    stop_processes()
