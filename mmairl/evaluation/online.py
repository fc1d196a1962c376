"""Hooks that measure the features while they are trained: k-NN every few epochs, and a linear probe at every step."""

import copy
import math
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from mmengine.dist import all_reduce, barrier, broadcast, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from mmairl.data.preprocess import require_channels
from mmairl.engine.hooks.progress import record
from mmairl.errors import UserError
from mmairl.evaluation.feature_store import stored
from mmairl.evaluation.features import Extraction, Features
from mmairl.evaluation.knn import knn_right
from mmairl.models.backbones import pooled
from mmairl.models.norm import first_view
from mmairl.models.processes import network_of
from mmairl.randomness import same_randomness
from mmairl.registry import DATASETS, HOOKS

UNKNOWN = -1  # label of an image of unknown class
# (share of the run, factor of the rate) of the release, which drops the rate after epochs 60 and 80.
STEPS = ((0.8, 0.01), (0.6, 0.1), (0.0, 1.0))


@HOOKS.register_module()
class OnlineKNNHook(Hook):
    """Measure k-NN accuracy on the config's `evaluation` during training.

    Each process extracts a share of the features with a copy of the backbone, and searches for a share of the test images.
    They exchange features through a file in the work dir, which is removed afterwards. Training is bit-identical with and
    without the hook: the student is not touched and the random state is restored.

    Args:
        interval: Epochs between two measurements. Default: 10.
        k: Number of neighbors. Default: 20.
    """

    priority = 'LOW'

    def __init__(self, interval: int = 10, k: int = 20) -> None:
        self.interval = interval
        self.k = k

    def before_train(self, runner: Runner) -> None:
        settings = runner.cfg.get('evaluation') or {}
        if not settings.get('train') or not settings.get('test'):
            raise UserError(
                'OnlineKNNHook requires labeled data; set evaluation = dict(train=..., test=...)',
                code='no-evaluation-data',
            )
        self.data = {name: DATASETS.build(settings[name]) for name in ('train', 'test')}
        model = network_of(runner)
        for dataset in self.data.values():
            require_channels(dataset, model.data_preprocessor.mean, model.backbone)

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch=None, outputs=None
    ) -> None:
        # Counts iterations, because mmengine sees a run by iterations as one long epoch.
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
        mean = model.data_preprocessor.mean.flatten().tolist()
        std = model.data_preprocessor.std.flatten().tolist()
        workers = runner.cfg.train_dataloader.get('num_workers', 0)
        how = Extraction(mean, std, device=next(model.parameters()).device, workers=workers)
        backbone = copy.deepcopy(model.backbone)
        features = []
        for name, dataset in self.data.items():
            path = Path(runner.work_dir) / f'online_knn_{name}.npy'
            path.unlink(missing_ok=True)  # left over from a killed run
            barrier()
            features.append(stored(path, backbone, dataset, how))
            barrier()
            path.unlink(missing_ok=True)  # open memory maps stay readable
        return features


@HOOKS.register_module()
class OnlineProbeHook(Hook):
    """Train a linear classifier on the detached pooled features of the student's first view, with its own SGD.

    The default rates are the release's: 30 in two steps by a tenth, or 0.2 along a cosine with LARS. The steps are after 60
    and 80 % of the run; the release, which probes the last view, has them after epochs 60 and 80 of a run of any length.
    The student gets no gradient and is bit-identical with and without the hook. The probe is saved and resumed with the run.

    Args:
        classes: Number of classes of the training set. Images with a negative label are left out.
        lr: Learning rate of the probe. Default: 30.
        schedule: 'steps' or 'cosine'. Default: 'steps'.

    Raises:
        UserError: If there are fewer than two classes, or if the schedule is unknown.
    """

    def __init__(self, classes: int, lr: float = 30.0, schedule: str = 'steps') -> None:
        if classes < 2:
            raise UserError(
                f"OnlineProbeHook: expected at least two classes ('{classes}')", code='few-classes'
            )
        if schedule not in ('steps', 'cosine'):
            raise UserError(
                f"OnlineProbeHook: unknown schedule ('{schedule}'); expected steps or cosine",
                code='unknown-schedule',
            )
        self.classes = classes
        self.lr = lr
        self.schedule = schedule
        self.probe: nn.Linear | None = None
        self.resumed: dict | None = None

    def before_train(self, runner: Runner) -> None:
        model = network_of(runner)
        self.handle = model.backbone.register_forward_hook(partial(self._keep, model))
        self.features: Tensor | None = None
        if not runner.iter:
            self.resumed = None  # belongs to the run that `load_from` took weights from

    def _keep(
        self, model: nn.Module, module: nn.Module, inputs: tuple, output: Tensor | tuple
    ) -> None:
        """Store the first training-mode output of the step, which is the first view's."""
        if self.features is None and module.training:
            features = first_view(model, pooled(output).detach())
            self.features = features.to(torch.promote_types(features.dtype, torch.float32))

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict, outputs=None
    ) -> None:
        features = self.features
        self.features = None
        labels = (data_batch.get('data_samples') or {}).get('label')
        highest = torch.tensor(-1) if labels is None else labels.max()
        if highest >= self.classes:
            raise UserError(
                f"OnlineProbeHook.classes: the training set has label {highest} ('{self.classes}'); "
                'set the number of its classes',
                code='label-out-of-range',
            )
        if self.probe is None:
            self._require_labels(runner, highest)
            self._build(features)
        labels = labels.to(features.device, non_blocking=True)  # pinned by the loader
        accuracy = self._step(features, labels.clamp(min=UNKNOWN), runner.iter / runner.max_iters)
        record(runner.message_hub, 'train/probe_accuracy', accuracy)

    def _require_labels(self, runner: Runner, highest: Tensor) -> None:
        all_reduce(highest, 'max')  # the first batch of another process may have labels
        known = (
            torch.as_tensor(getattr(runner.train_dataloader.dataset, 'labels', UNKNOWN)) > UNKNOWN
        )
        if highest < 0 and not known.any():
            raise UserError(
                'OnlineProbeHook requires labels and the training set has none; remove OnlineProbeHook',
                code='no-labels',
            )

    def _build(self, features: Tensor) -> None:
        """Start from small normal weights, equal in all processes, without using the run's own random numbers."""
        self.probe = nn.Linear(features.shape[1], self.classes, device='meta', dtype=features.dtype)
        self.probe.to_empty(device=features.device)
        start = torch.randn(self.probe.weight.shape, generator=torch.Generator().manual_seed(0))
        self.probe.weight.data.copy_(0.01 * start)
        self.probe.bias.data.zero_()
        self.optimizer = torch.optim.SGD(self.probe.parameters(), lr=self.lr, momentum=0.9)
        if self.resumed is not None:
            self.probe.load_state_dict(self.resumed['probe'])
            self.optimizer.load_state_dict(self.resumed['optimizer'])
        for parameter in self.probe.parameters():
            broadcast(parameter.data)

    @torch.enable_grad()
    def _step(self, features: Tensor, labels: Tensor, progress: float) -> Tensor:
        """Take one step and return the accuracy before it.

        Unknown labels are ignored by the loss instead of removed from the batch, which would synchronize with the device.
        """
        self.optimizer.param_groups[0]['lr'] = self.lr_at(progress)
        scores = self.probe(features)
        known = (
            (labels != UNKNOWN).sum().clamp(min=1)
        )  # a batch of a partly labeled set may have no label
        loss = F.cross_entropy(scores, labels, ignore_index=UNKNOWN, reduction='sum') / known
        gradients = torch.autograd.grad(loss, list(self.probe.parameters()))
        for parameter, gradient in zip(self.probe.parameters(), gradients):
            all_reduce(gradient, 'mean')
            parameter.grad = gradient.nan_to_num_(
                0.0, 0.0, 0.0
            )  # a batch whose step is skipped moves nothing
        self.optimizer.step()
        accuracy = (scores.detach().argmax(dim=1) == labels).sum() / known
        all_reduce(accuracy, 'mean')
        return accuracy

    def lr_at(self, progress: float) -> float:
        """Return the rate at this share of the run."""
        if self.schedule == 'cosine':
            return self.lr * (1 + math.cos(math.pi * progress)) / 2
        return self.lr * next(factor for share, factor in STEPS if progress >= share)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if self.probe is not None:
            checkpoint['online_probe'] = dict(
                probe=self.probe.state_dict(), optimizer=self.optimizer.state_dict()
            )

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.resumed = checkpoint.get('online_probe')

    def after_train(self, runner: Runner) -> None:
        self.handle.remove()
