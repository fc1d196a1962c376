"""The loss of a short run in float32 and in bfloat16; `python tests/bf16_curves.py PICTURE` draws it for three seeds."""

import sys
import tempfile
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from mmairl.engine import launch

CONFIG = Path(__file__).parents[1] / 'configs' / 'demo' / 'mocov2plus_shapes.py'
RUNS = count()
STEPS, BATCH, MEAN_OVER = 300, 64, 25


def losses(work_dir: Path, dtype: str | None, seed: int = 0) -> Tensor:
    """Of each of 300 steps of the demo, at a quarter of its batch and on views that are easily told apart, by colour too."""
    cfg = launch.load_config(str(CONFIG))
    view = [dict(type='RandomResizedCrop', size=32, scale=(0.2, 1.0)), dict(type='RandomFlip')]
    cfg.model.data_preprocessor.views = [view, view]
    cfg.optim_wrapper.update(dtype=dtype, optimizer=dict(cfg.optim_wrapper.optimizer, lr=0.3 * BATCH / 256))
    cfg.train_dataloader.dataset.count = 2400
    cfg.total_batch_size, cfg.randomness.seed, cfg.work_dir = BATCH, seed, str(work_dir)
    cfg.train_cfg = dict(by_epoch=False, max_iters=STEPS)
    cfg.param_scheduler = [dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=False, begin=0, end=STEPS)]
    cfg.default_hooks.checkpoint.update(interval=10 * STEPS, by_epoch=False, save_last=False)
    cfg.default_hooks.pop('progress')
    cfg.visualizer.vis_backends = [dict(type='LocalVisBackend')]
    cfg.experiment_name = f'curve{next(RUNS)}'
    runner = launch.train(cfg)
    return torch.tensor(runner.message_hub.get_scalar('train/loss').data[0])


def smooth(values: Tensor) -> Tensor:
    """Means over consecutive steps."""
    return values.view(-1, MEAN_OVER).mean(dim=1)


def draw(path: str) -> None:
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.6), layout='constrained')
    steps = torch.arange(MEAN_OVER / 2, STEPS, MEAN_OVER)
    for dtype, colour in ((None, 'C0'), ('bfloat16', 'C1')):
        for seed, line in enumerate(('-', '--', ':')):
            with tempfile.TemporaryDirectory() as folder:
                found = losses(Path(folder), dtype, seed)
            axes.plot(steps, smooth(found), line, color=colour, label=f'{dtype or "float32"}, seed {seed}')
            print(f'{dtype or "float32"}, seed {seed}: {found[-100:].mean():.2f} over the last 100 steps', flush=True)
    axes.set(xlabel='step', ylabel=f'loss, mean over {MEAN_OVER} steps')
    axes.set_title('MoCo v2+ on Shapes, the demo network, easy views')
    axes.legend(frameon=False, ncols=2)
    figure.savefig(path, dpi=120)


if __name__ == '__main__':
    draw(sys.argv[1])
