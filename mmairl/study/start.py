"""What a run starts from, recorded so that a study knows whether a seed means the same in two of its rows."""

from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner

from mmairl.evaluation.identity import key_of, weights_identity
from mmairl.files import write_json
from mmairl.registry import HOOKS


@HOOKS.register_module()
class RecordStart(Hook):
    """Writes digests of the backbone's initial weights, of their shapes, and of the first epoch's order of images.

    Heads are left out, since rows that differ in them can still start from the same backbone.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def before_train(self, runner: Runner) -> None:
        if runner.iter or not is_main_process():
            return
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        weights = {name: tensor.cpu() for name, tensor in model.backbone.state_dict().items()}
        order = getattr(runner.train_dataloader.sampler, 'order', None)  # other samplers than ours do not tell
        record = dict(
            weights=weights_identity(weights),
            shapes=key_of({name: list(tensor.shape) for name, tensor in weights.items()}),
            order=key_of({'images': order()}) if order else None,
        )
        write_json(self.path, record)
