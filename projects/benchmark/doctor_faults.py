"""Plant twelve faults in short runs of the demo, and print at which rank `mmairl doctor` lists the cause.

    python -m projects.benchmark.doctor_faults [FAULT ...]

Each run has 160 iterations on a network of half the demo's width. If the doctor finds no bad sign in a run, the
rank is that in the list of remedies for settings with unusual values.
"""

import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmairl.config import load_config
from mmairl.engine.doctor import Trial, by_likelihood, first_sign, remedies, treat
from mmairl.engine.fork import Fork
from mmairl.engine.run import register, train
from mmairl.errors import Diverged

STEPS = 40  # iterations of each continued run in which the doctor tries a remedy
SMALL = {
    'model.backbone.stem_channels': 8,
    'model.backbone.base_channels': 8,
    'model.projector.in_channels': 64,
    'model.queue.length': 512,
    'train_dataloader.dataset.count': 2560,
    'total_batch_size': 64,
    'train_cfg.max_epochs': 4,
    'param_scheduler.0.end': 1,
    'param_scheduler.1.begin': 1,
    'param_scheduler.1.end': 4,
    'optim_wrapper.optimizer.lr': 0.1,
    'default_hooks.momentum.base': 0.95,
    'default_hooks.momentum.schedule': 'constant',
    'default_hooks.health.interval': 2,
    'default_hooks.checkpoint': {'by_epoch': False, 'interval': 20, 'max_keep_ckpts': -1},
    'randomness.seed': 3,
    'log_level': 'ERROR',
}
RATE = 'optim_wrapper.optimizer.lr'
TEACHER = 'default_hooks.momentum.base'
TEMPERATURE = 'model.head.temperature'
VIEWS = 'model.data_preprocessor.views'
LOWER_RATE = 'lower the learning rate to a tenth'
SLOWER_TEACHER = 'average the teacher over more steps'
USUAL_TEMPERATURE = 'use a usual temperature'
USUAL_VIEWS = 'use the usual views'
SAME = [{'type': 'Resize', 'size': 32}]
TINY = [{'type': 'RandomResizedCrop', 'size': 32, 'scale': (1e-4, 2e-4)}]
# For each fault: the options that cause it, and the doctor's remedy that undoes them.
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    'learning rate 10': ({RATE: 10.0}, LOWER_RATE),
    'learning rate 1000': ({RATE: 1000.0}, LOWER_RATE),
    'teacher without momentum': ({TEACHER: 0.0}, SLOWER_TEACHER),
    'frozen teacher': ({TEACHER: 1.0}, SLOWER_TEACHER),
    'fast teacher, long queue': (
        {TEACHER: 0.5, 'model.queue.length': 1280},
        SLOWER_TEACHER,
    ),
    'temperature 0.001': ({TEMPERATURE: 1e-3}, USUAL_TEMPERATURE),
    'temperature 50': ({TEMPERATURE: 50.0}, USUAL_TEMPERATURE),
    'weight decay 3': ({'optim_wrapper.optimizer.weight_decay': 3.0}, 'lower the weight decay'),
    'momentum 0.999': (
        {'optim_wrapper.optimizer.momentum': 0.999},
        "lower the optimizer's momentum",
    ),
    'queue longer than an epoch': ({'model.queue.length': 4096}, 'shorten the queue'),
    'equal views': ({VIEWS: [SAME, SAME]}, USUAL_VIEWS),
    'views of single pixels': ({VIEWS: [TINY, TINY]}, USUAL_VIEWS),
}


def plant(folder: Path, changes: dict[str, Any]) -> Path:
    """Train a run with a planted fault, and return its work dir."""
    cfg = load_config('mmairl::demo/mocov2plus_shapes.py', {**SMALL, 'work_dir': str(folder)})
    cfg.merge_from_dict(changes)
    with suppress(Diverged):
        train(cfg)
    return folder


def diagnosis(run: Path) -> tuple[str, list[str]]:
    """Return the first bad sign of a run, and the doctor's remedies, the most likely first."""
    sign = first_sign(run)
    if sign is None:
        unusual = [remedy for remedy in remedies(Fork(run).config()) if remedy.specific]
        return 'no sign', [remedy.words for remedy in unusual]
    outcomes = by_likelihood(treat(Trial(run, sign, STEPS), repeats=1))
    sign_text = f'{sign.quantity.name} at iteration {sign.iteration}'
    return sign_text, [outcome.remedy.words for outcome in outcomes]


def main(names: list[str]) -> None:
    register()
    hits = 0
    names = names or list(FAULTS)
    for name in names:
        changes, cause = FAULTS[name]
        with tempfile.TemporaryDirectory(prefix='mmairl-faults-') as folder:
            sign, order = diagnosis(plant(Path(folder) / 'run', changes))
        rank = order.index(cause) + 1 if cause in order else None
        hits += rank in (1, 2)
        print(f'{name}: {sign}; rank of the cause: {rank or "not found"}', flush=True)
    print(f'the cause is among the first two in {hits} of {len(names)} faults')


if __name__ == '__main__':
    main(sys.argv[1:])
