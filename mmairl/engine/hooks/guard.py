"""A guard against ending worse than the start, for runs that continue from trained weights."""

from pathlib import Path
from typing import Any

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from scipy.stats import binomtest
from torch import Tensor

from mmairl.errors import UserError
from mmairl.io import write_json
from mmairl.registry import HOOKS

LEVEL = 0.95
# The checkpoints. They have a folder of their own, because no run can resume from them.
FILES = dict(start='guard/start.pth', best='guard/later.pth')


@HOOKS.register_module()
class GuardHook(Hook):
    """Keep the initial weights of a run, unless a later checkpoint is better by more than chance.

    The run requires ``val_cfg=dict(type='KNNValLoop', half=True)``. Its k-NN accuracy is measured before the first step and
    at each validation. One half of the held-out images chooses the best checkpoint. The other half decides at the end of the
    run: the initial weights are kept unless the 95 % confidence interval of the difference is above 0. guard.json in the work
    dir states the decision and the file of the kept weights.

    Raises:
        UserError: If the run has no such validation loop.
    """

    # CheckpointHook must be ready before the first validation.
    priority = 'LOWEST'

    def before_train(self, runner: Runner) -> None:
        loop = runner.val_loop
        if not getattr(loop, 'half', False) or len(loop.sets[1]) < 2:
            raise UserError(
                'GuardHook: requires k-NN on half of at least two held-out images; set '
                "val_cfg=dict(type='KNNValLoop', half=True), val_dataloader=dict(), val_evaluator=[], and add labeled images",
                code='no-validation',
            )
        if 'guard' not in runner.message_hub.runtime_info:
            loop.run()

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float]) -> None:
        loop = runner.val_loop
        score = metrics['knn_accuracy']
        seen = dict(runner.message_hub.runtime_info.get('guard', {}))
        if seen and score <= seen['score']:
            return
        part = 'best' if seen else 'start'
        # Checkpoints store the message hub, so a resumed run continues with these values.
        seen |= {'score': score, part: loop.right[1::2].tolist()}
        runner.message_hub.update_info('guard', seen)
        meta = dict(epoch=runner.epoch, iter=runner.iter)
        path = Path(runner.work_dir) / FILES[part]
        path.parent.mkdir(parents=True, exist_ok=True)
        runner.save_checkpoint(str(path.parent), path.name, meta=meta, save_optimizer=False)

    def after_train(self, runner: Runner) -> None:
        seen = runner.message_hub.runtime_info['guard']
        start = torch.tensor(seen['start'])
        found = decision(start, torch.tensor(seen.get('best', seen['start'])))
        kept = Path(runner.work_dir).absolute() / FILES[found['kept']]
        if is_main_process():
            write_json(Path(runner.work_dir) / 'guard.json', {**found, 'checkpoint': str(kept)})
            print(f'guard: {found["sentence"]}', flush=True)


def decision(start: Tensor, best: Tensor) -> dict[str, Any]:
    """Decide between the initial weights and the best later checkpoint, which was chosen by other images.

    The interval of the difference in accuracy is exact: given the images on which only one of the two is right, the number on
    which it is the later one is binomial. If both are equally good, the later one is kept in at most 2.5 % of cases.

    Args:
        start: Which images the initial weights classify correctly.
        best: Which images the later checkpoint classifies correctly.

    Returns:
        `kept` ('start' or 'best'), `accuracies`, `interval` and `sentence`. All numbers are in percent.
    """
    gained, lost = int((best & ~start).sum()), int((start & ~best).sum())
    shares = [0.5, 0.5]
    if gained + lost:
        shares = binomtest(gained, gained + lost).proportion_ci(LEVEL)
    low, high = (100 * (2 * share - 1) * (gained + lost) / len(start) for share in shares)
    accuracies = [100 * int(right.sum()) / len(right) for right in (start, best)]
    kept = 'best' if low > 0 else 'start'
    choice = dict(best='the best checkpoint', start='the initial weights')[kept]
    sentence = (
        f'{choice} should be used: {accuracies[0]:.1f} % of {len(start)} held-out images are right at the start and '
        f'{accuracies[1]:.1f} % at best; the difference is between {low:+.1f} and {high:+.1f} points (95 % confidence)'
    )
    return dict(kept=kept, accuracies=accuracies, interval=[low, high], sentence=sentence)
