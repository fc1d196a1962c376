"""Train variants of BYOL on Shapes and measure whether they collapse.

    python projects/byol_variants/collapse.py [--epochs 6]

A collapsed network maps all images to one point, so the standard deviation of its unit embeddings over images is 0. For
embeddings that are spread evenly over the sphere, the standard deviation is 1/sqrt(d) in each of d dimensions. The command
prints the standard deviation relative to this value.
"""

import argparse
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.runner import Runner
from torch.utils.data import default_collate

from mmairl.config import load_config
from mmairl.engine.run import train
from mmairl.errors import UserError, one_sentence_errors
from mmairl.models.siamese import project
from mmairl.models.spectrum import spread
from mmairl.registry import DATASETS

ROOT = Path(__file__).parents[2]
# For each variant: whether it has a predictor, its `model.target`, the weight `beta` of negatives, and whether the variant
# collapses according to Tables 5a and 5b of BYOL's paper (top-1 accuracy of 0.1 to 0.3 %).
VARIANTS = {
    'BYOL': (True, 'teacher', 0.0, False),
    'BYOL with negatives': (True, 'teacher', 1.0, False),
    'no predictor, negatives': (False, 'teacher', 1.0, False),
    'SimCLR': (False, 'student', 1.0, False),
    'no target, negatives': (True, 'student', 1.0, False),
    'no target (stop-gradient)': (True, 'stop_gradient', 0.0, True),
    'no target (gradient through both sides)': (True, 'student', 0.0, True),
    'no predictor (mean teacher)': (False, 'teacher', 0.0, True),
    'no predictor, no target': (False, 'student', 0.0, True),
}


def variant(predictor: bool, target: str, beta: float, epochs: int, work_dir: Path) -> Config:
    cfg = load_config(str(ROOT / 'projects/byol_variants/configs/toy_shapes.py'))
    cfg.model.target, cfg.model.head.beta = target, beta
    if not predictor:
        cfg.model.predictor = None
    warm_up = cfg.param_scheduler[0].end
    if epochs <= warm_up:
        raise UserError(
            f"--epochs: must exceed the epochs of the warm-up ('{epochs}'); set {warm_up + 1} or more"
        )
    cfg.train_cfg.max_epochs = epochs
    cfg.work_dir, cfg.randomness.seed = str(work_dir), 0
    return cfg


@torch.no_grad()
def spread_of(runner: Runner) -> float:
    """Return the relative standard deviation of the projections of 512 images that were not used for training."""
    model = runner.model.train()
    data = DATASETS.build(dict(type='Shapes', split='val', count=512, size=48))
    views = model.data_preprocessor(default_collate([data[i] for i in range(512)]), training=True)[
        'inputs'
    ]
    return spread(project(model, views[0]))


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--epochs', type=int, default=6)
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/collapse'))
    args = parser.parse_args()
    print('| variant | predictor | target | beta | published | spread |\n|---|---|---|---|---|---|')
    for name, (predictor, target, beta, collapses) in VARIANTS.items():
        relative_spread = spread_of(
            train(
                variant(
                    predictor, target, beta, args.epochs, args.work_dir / name.replace(' ', '_')
                )
            )
        )
        has, published = 'yes' if predictor else 'no', 'collapses' if collapses else 'learns'
        print(
            f'| {name} | {has} | {target} | {beta:g} | {published} | {relative_spread:.3f} |',
            flush=True,
        )


if __name__ == '__main__':
    main()
