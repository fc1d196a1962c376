"""SimSiam, VICReg and DINO: their losses against the printed formulas, and a run on Shapes that does not collapse."""

from pathlib import Path

import torch
from torch.utils.data import default_collate

from mmairl.configs import load_config
from mmairl.engine import launch
from mmairl.models.heads import unit
from mmairl.models.siamese import project
from mmairl.registry import DATASETS

CONFIGS = Path(__file__).parents[2] / 'projects/more_methods/configs'
# What each method does without the part that keeps it from collapsing: for VICReg the variance, for SimSiam the
# stop-gradient, for DINO the centre.
WITHOUT = {
    'simsiam': {'model.target': 'student'},
    'vicreg': {'model.head.variance': 0.0, 'model.head.covariance': 0.0},
    'dino': {'model.head.centre_momentum': 1.0},
}


def spread(name: str, tmp_path: Path, **options) -> float:
    """The deviation of unseen images' unit projections after a short run, over that of an even spread; 0 is a collapse."""
    cfg = load_config(str(CONFIGS / f'{name}_shapes.py'), options)
    cfg.model.backbone.update(stem_channels=8, base_channels=8)
    cfg.model.projector.in_channels = 64
    cfg.train_dataloader.dataset.count = cfg.total_batch_size = 64
    cfg.train_dataloader.dataset.count *= 10
    cfg.train_cfg = dict(by_epoch=True, max_epochs=4)
    cfg.default_hooks.checkpoint.update(interval=100, save_last=False)
    cfg.work_dir, cfg.randomness.seed, cfg.experiment_name = str(tmp_path), 0, f'{name}{len(options)}'
    model = launch.train(cfg).model.train()
    data = DATASETS.build(dict(type='Shapes', split='val', count=128, size=48))
    views = model.data_preprocessor(default_collate([data[i] for i in range(128)]), training=True)['inputs']
    with torch.no_grad():
        z = unit(project(model, views[0]))
    return (z.std(dim=0).mean() * z.shape[1] ** 0.5).item()
