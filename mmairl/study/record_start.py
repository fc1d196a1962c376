"""Record the initial weights and the order of images of a run, and measure the time of its training.

The statistics pair the runs of two rows by their seeds only if the runs of each seed recorded the same order of images. If
the two backbones have equal shapes, the runs must also have recorded the same initial weights.
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
from mmairl.study.runs import Start

# The digest covers at most this many images at the start of the first epoch. Their order identifies the order of all images.
FIRST = 2**21


@HOOKS.register_module()
class RecordStart(Hook):
    """Writes digests of the backbone's initial weights, of their shapes, and of the order of images in the first epoch.

    The weights of heads are not included, because rows that differ in their heads can start from the same backbone. Each
    checkpoint stores the seconds of training until then, so the time of a resumed run is that of all its parts.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.began = time.perf_counter()
        self.earlier = 0.0

    @property
    def seconds(self) -> float:
        return self.earlier + time.perf_counter() - self.began

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint['seconds'] = self.seconds

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
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
            order = key_of({'images': sampler.order()[:FIRST].tolist()})
        write_json(self.path, Start(weights_identity(weights), key_of(shapes), order))
