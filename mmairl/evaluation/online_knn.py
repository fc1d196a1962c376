"""The k-NN accuracy of the student as it stands, every few epochs."""

import copy
from pathlib import Path

from mmengine.dist import barrier, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmairl.data.preprocess import require_channels
from mmairl.errors import UserError
from mmairl.evaluation.features import Extraction, Features, stored
from mmairl.evaluation.knn import knn_right
from mmairl.models.processes import network_of
from mmairl.randomness import same_randomness
from mmairl.registry import DATASETS, HOOKS


@HOOKS.register_module()
class OnlineKNNHook(Hook):
    """Measures k-NN on the config's `evaluation` after every `interval` epochs.

    Each process extracts its share of the features with a copy of the backbone and searches for its share. They share the
    features through a file in the work dir, which is removed afterwards. Training is the same to the last bit with it and
    without: the student is not touched and the random state is restored.
    """

    priority = 'LOW'

    def __init__(self, interval: int = 10, k: int = 20) -> None:
        self.interval, self.k = interval, k

    def before_train(self, runner: Runner) -> None:
        settings = runner.cfg.get('evaluation') or {}
        if not settings.get('train') or not settings.get('test'):
            raise UserError('the online k-NN has no data; set evaluation = dict(train=..., test=...)')
        self.data = {name: DATASETS.build(settings[name]) for name in ('train', 'test')}
        model = network_of(runner)
        for dataset in self.data.values():
            require_channels(dataset, model.data_preprocessor.mean, model.backbone)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        # also of a run by iterations, which mmengine takes for one long epoch
        if not self.every_n_train_iters(runner, self.interval * len(runner.train_dataloader)):
            return
        with same_randomness():
            train, test = self._features(runner)
        k = min(self.k, len(train.y))
        right = knn_right(train, test, [k], device=next(runner.model.parameters()).device)[k]
        accuracy = 100 * int(right.sum()) / len(right)
        if is_main_process():
            runner.visualizer.add_scalars({'knn_accuracy': accuracy}, step=runner.iter + 1)
            runner.message_hub.update_scalar('train/knn_accuracy', accuracy)
            runner.logger.info(f'online k-NN, k = {k}: {accuracy:.1f} %')
        barrier()

    def _features(self, runner: Runner) -> list[Features]:
        model = network_of(runner)
        mean, std = (getattr(model.data_preprocessor, name).flatten().tolist() for name in ('mean', 'std'))
        workers = runner.cfg.train_dataloader.get('num_workers', 0)
        how = Extraction(mean, std, device=next(model.parameters()).device, workers=workers)
        backbone, features = copy.deepcopy(model.backbone), []
        for name, dataset in self.data.items():
            path = Path(runner.work_dir) / f'online_knn_{name}.npy'
            path.unlink(missing_ok=True)  # of a run that was killed
            barrier()
            features.append(stored(path, backbone, dataset, how))
            barrier()
            path.unlink(missing_ok=True)  # what is open can still be read
        return features
