"""The start of a run, by which a study knows whether a seed means the same in two of its rows, and how long it trains."""

import time
from pathlib import Path

import numpy as np
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmairl.evaluation.identity import key_of, weights_identity
from mmairl.io import write_json
from mmairl.models.processes import network_of
from mmairl.registry import HOOKS

FIRST = 2**21  # images of an order, enough to tell it from any other


@HOOKS.register_module()
class RecordStart(Hook):
    """Writes digests of the backbone's initial weights, of their shapes, and of the first epoch's order of images.

    Heads are left out, since rows that differ in them can still start from the same backbone. The seconds are kept in the
    checkpoints, so that a run that was resumed has those of its earlier starts.
    """

    def __init__(self, path: str) -> None:
        self.path, self.began, self.earlier = Path(path), time.perf_counter(), 0.0

    @property
    def seconds(self) -> float:
        return self.earlier + time.perf_counter() - self.began

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint['seconds'] = self.seconds

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        start = getattr(runner, 'start', None)
        of_this_run = runner.cfg.get('resume') and not (start and start.forks)
        if of_this_run:
            self.earlier = checkpoint.get('seconds', 0.0)

    def before_train(self, runner: Runner) -> None:
        if runner.iter or not is_main_process():
            return
        weights = {
            name: tensor.cpu() for name, tensor in network_of(runner).backbone.state_dict().items()
        }
        sampler = runner.train_dataloader.sampler
        order = getattr(sampler, 'order', None)  # other samplers than ours do not tell
        record = dict(
            weights=weights_identity(weights),
            shapes=key_of({name: list(tensor.shape) for name, tensor in weights.items()}),
            order=key_of({'images': order()(np.arange(min(sampler.images, FIRST))).tolist()})
            if order
            else None,
        )
        write_json(self.path, record)
