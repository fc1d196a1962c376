"""A validation loop that measures k-NN accuracy during training."""

import copy

from mmengine.runner import Runner
from mmengine.runner.base_loop import BaseLoop
from torch import Tensor

from mmairl.data.preprocess import preprocessing_of
from mmairl.models.processes import network_of
from mmairl.randomness import same_randomness
from mmairl.registry import DATASETS, LOOPS


@LOOPS.register_module()
class KNNValLoop(BaseLoop):
    """Measure the k-NN accuracy of the backbone, as in `val_cfg = dict(type='KNNValLoop')`.

    The images are those of `evaluation.val` or, if there is none, a part of the training images, so that a checkpoint can be
    chosen by the score.

    The config also sets ``val_dataloader = dict()``, ``val_evaluator = []`` and `train_cfg.val_interval`. mmengine's hooks use
    the score by its name: `default_hooks.checkpoint.save_best='knn_accuracy'`, or `monitor='knn_accuracy'` of
    EarlyStoppingHook. Training is bit-identical with and without this loop.

    Args:
        runner: The runner.
        dataloader: Not used. The loop reads the images of the config's `evaluation`.
        evaluator: Not used.
        k: Number of neighbors. Default: 20.
        half: Whether the score is measured on every second image only. `GuardHook` requires it. Default: False.

    Raises:
        UserError: If the config has no labeled data, or its labels cannot be used.
    """

    def __init__(
        self,
        runner: Runner,
        dataloader: object,
        evaluator: object,
        k: int = 20,
        half: bool = False,
    ) -> None:
        # This import takes seconds, and only runs with this loop need it.
        from mmairl.evaluation.sets import evaluation_data, held_out, require_labels

        self._runner = runner
        self.dataloader = []
        self.k = k
        self.half = half
        sets = held_out(evaluation_data(runner.cfg))
        self.sets = [DATASETS.build(settings) for settings in sets]
        for dataset, described in zip(self.sets, sets):
            require_labels('evaluation', dataset, self.sets[0], described, ('single',))

    def run(self) -> dict[str, float]:
        from mmairl.evaluation.features import on_main_process

        self.runner.call_hook('before_val')
        self.runner.call_hook('before_val_epoch')
        with same_randomness():
            self.right = on_main_process(self.classify)
        scored = self.right[::2] if self.half else self.right
        metrics = dict(knn_accuracy=100 * int(scored.sum()) / len(scored))
        self.runner.call_hook('after_val_epoch', metrics=metrics)
        self.runner.call_hook('after_val')
        return metrics

    def classify(self) -> Tensor:
        """Return which images a copy of the backbone classifies correctly."""
        from mmairl.evaluation.features import Extraction, extract
        from mmairl.evaluation.knn import knn_predictions

        model = network_of(self.runner)
        steps = preprocessing_of(self.runner.cfg)
        workers = self.runner.cfg.train_dataloader.get('num_workers', 0)
        device = next(model.parameters()).device
        how = Extraction(steps['mean'], steps['std'], device=device, workers=workers)
        backbone = copy.deepcopy(model.backbone)
        bank, queries = (extract(backbone, dataset, how) for dataset in self.sets)
        k = min(self.k, len(bank.y))
        return knn_predictions(bank, queries, [k], device=device)[k] == queries.y
