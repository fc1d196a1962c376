"""Run under torchrun by test_processes: train a toy config and let rank 0 save what came out."""

import sys

import torch
import toy

from mmairl.engine import launch

if __name__ == '__main__':
    launcher, out, work_dir, *names = sys.argv[1:]
    launch.register()
    torch.set_default_dtype(torch.float64)
    saved = {}
    for name in names:
        cfg = toy.config(f'{name}_r50_200e.py', f'{work_dir}/{name}', steps=3, batch=8, queue=16, dtype='float64')
        runner = launch.train(cfg, launcher)
        model = getattr(runner.model, 'module', runner.model)
        saved[name] = dict(weights=model.state_dict(), wrapped=model is not runner.model)
    if runner.rank == 0:
        torch.save(saved, out)
