"""Run under torchrun by test_processes: train a toy config and let rank 0 save what came out."""

import sys

import torch
import toy

from mmairl.engine import launch

if __name__ == '__main__':
    launcher, out, work_dir = sys.argv[1:4]
    launch.register()
    cfg = toy.config('mocov2plus_r50_200e.py', work_dir, steps=3, batch=8, queue=16, dtype='float64')
    torch.set_default_dtype(torch.float64)
    runner = launch.train(cfg, launcher)
    if runner.rank == 0:
        model = getattr(runner.model, 'module', runner.model)
        torch.save(dict(weights=model.state_dict(), wrapped=model is not runner.model), out)
