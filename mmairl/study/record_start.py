"""Record the initial weights and the order of images of a run, and measure the time of its training.

A row of a study is one configuration, usually trained with several seeds.

The statistics pair the runs of two rows by their seeds only if the runs of each seed recorded the same order of images. If
the two backbones have equal shapes, the runs must also have recorded the same initial weights. Runs that share the epochs
before a fork are paired in any case.
"""

import time
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmairl.evaluation.identity import key_of, weights_identity
from mmairl.io import write_json
from mmairl.models.processes import network_of
from mmairl.registry import HOOKS
from mmairl.study.schema import TrainingStart

# The digest of the order covers at most this many images at the start of the first epoch. The order of these images
# identifies the order of all images.
FIRST = 2**21


@HOOKS.register_module()
class RecordStart(Hook):
    """Writes digests of the backbone's initial weights, of their shapes, and of the order of images in the first epoch.

    The weights of heads are not included, because rows that differ in their heads can start from the same backbone.

    The hook also measures the time of training. Each checkpoint stores the seconds of training until then, so the time of
    a resumed run includes the time until the checkpoint from which it resumed.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.began = time.perf_counter()
        self.earlier = 0.0

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
        state = network_of(runner).backbone.state_dict()
        weights = {name: tensor.cpu() for name, tensor in state.items()}
        shapes = {name: list(tensor.shape) for name, tensor in weights.items()}
        sampler = runner.train_dataloader.sampler
        order = None
        # Only the sampler of this package can compute the order in advance.
        if hasattr(sampler, 'order'):
            images = sampler.order()[:FIRST]
            order = key_of({'images': images.tolist()})
        start = TrainingStart(weights_identity(weights), key_of(shapes), order)
        write_json(self.path, start)
