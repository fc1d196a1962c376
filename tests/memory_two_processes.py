"""Run under torchrun by tests/engine/test_memory.py: what each strategy really holds, tensor by tensor."""

import gc
import sys

import torch
import toy
from mmengine.config import Config
from mmengine.dist import get_rank
from mmengine.hooks import Hook

from mmairl.engine import launch
from mmairl.engine.distributed import start_processes
from mmairl.engine.memory import LiveBytes
from mmairl.errors import stop_processes
from mmairl.registry import HOOKS

BATCH = 4  # images a process
STRATEGIES = {
    'DDP': None,
    'ZeRO-1': dict(stage=1),
    'ZeRO-2': dict(stage=2),
    'ZeRO-3': dict(stage=3),
}


def config(work_dir: str = '', processes: int = 2) -> Config:
    """BYOL with a ViT of 5.5 million parameters, trained by AdamW."""
    cfg = toy.config('byol_r50_200e.py', work_dir, steps=2, batch=BATCH * processes)
    cfg.model.backbone = dict(
        type='mmpretrain.VisionTransformer', arch='deit-tiny', img_size=32, patch_size=16, out_type='cls_token'
    )
    cfg.model.projector.in_channels = 192
    cfg.optim_wrapper.optimizer = dict(type='AdamW', lr=1e-4)
    cfg.default_hooks.checkpoint.update(interval=100, save_last=False)
    return cfg


@HOOKS.register_module(force=True)
class Ledger(Hook):
    """Notes what lives after the second step, and at its fullest moment."""

    priority = 'LOWEST'
    live: LiveBytes

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        gc.collect()
        self.live.peak = self.live.now

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        self.peak = self.live.peak
        gc.collect()
        self.kept = self.live.now


def measure(name: str, work_dir: str, bf16_weights: bool) -> dict[str, int]:
    cfg = config(f'{work_dir}/{name}{bf16_weights}')
    if STRATEGIES[name]:
        cfg.strategy = dict(type='ZeroStrategy', zero_optimization=STRATEGIES[name])
        if bf16_weights:
            cfg.strategy.bf16 = dict(enabled=True)
    cfg.custom_hooks = [dict(type='Ledger')]
    with LiveBytes() as Ledger.live:
        runner = launch.train(cfg, 'pytorch')
        ledger = next(hook for hook in runner.hooks if isinstance(hook, Ledger))
    return dict(kept=ledger.kept, peak=ledger.peak)


def main() -> None:
    out, work_dir = sys.argv[1:]
    found = {name: measure(name, work_dir, False) for name in STRATEGIES}
    found |= {f'{name}, bf16': measure(name, work_dir, True) for name in list(STRATEGIES)[1:]}
    if get_rank() == 0:
        torch.save(found, out)
        print(found)


if __name__ == '__main__':
    launch.register()
    start_processes('pytorch')
    main()
    stop_processes()
