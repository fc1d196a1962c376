"""Run under torchrun by test_memory.py: what each strategy really holds, tensor by tensor."""

import gc
import sys
import weakref

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
STRATEGIES = {'DDP': None, 'ZeRO-1': 'zero1', 'ZeRO-2': 'zero2', 'ZeRO-3': 'zero3'}


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


def count_resized(live: LiveBytes) -> None:
    """Have storages counted that change their size: so `fully_shard` gives memory back and takes it again."""
    plain = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if storage in live.known:
            more = size - storage.nbytes()
            live._change(more)
            weakref.finalize(storage, live._change, -more)
        return plain(storage, size)

    torch.UntypedStorage.resize_ = resize


def measure(name: str, work_dir: str) -> dict[str, int]:
    cfg = config(f'{work_dir}/{name}')
    if STRATEGIES[name]:
        cfg.strategy = launch.strategy_named(STRATEGIES[name])
    cfg.custom_hooks = [dict(type='Ledger')]
    with LiveBytes() as Ledger.live:
        count_resized(Ledger.live)
        runner = launch.train(cfg, 'pytorch')
        ledger = next(hook for hook in runner.hooks if isinstance(hook, Ledger))
    return dict(kept=ledger.kept, peak=ledger.peak)


if __name__ == '__main__':
    out, work_dir = sys.argv[1:]
    launch.register()
    start_processes('pytorch')
    found = {name: measure(name, work_dir) for name in STRATEGIES}
    if get_rank() == 0:
        torch.save(found, out)
        print(found)
    stop_processes()
