"""Hooks that measure features during pre-training, by k-NN every few epochs or by a linear probe at every step."""

import copy
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from mmengine.dist import all_reduce, barrier, broadcast, is_main_process
from mmengine.hooks import CheckpointHook, EarlyStoppingHook, Hook
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import Dataset

from mmairl.data.preprocess import require_channels
from mmairl.data.splits import Groups, groups_of, image_names, split_by_class
from mmairl.errors import UserError
from mmairl.evaluation.features import Extraction, Features, stored
from mmairl.evaluation.knn import knn_right
from mmairl.evaluation.sets import evaluation_data, held_out
from mmairl.models.backbones import pooled
from mmairl.models.norm import first_view
from mmairl.models.processes import network_of
from mmairl.randomness import same_randomness
from mmairl.registry import DATASETS, HOOKS

UNKNOWN = -1  # label of an image whose class is unknown
TEST_SCORE = 'knn_accuracy_on_test_images'
# Each pair has a fraction of the run and the factor that multiplies the learning rate from there on.
STEPS = ((0.8, 0.01), (0.6, 0.1), (0.0, 1.0))


class SelectionHook(Hook):
    """Base class of hooks whose scores the checkpoint hook (`save_best`) and the early-stopping hook can use."""

    measured: dict[str, float] | None = None

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        self.report(runner)

    def after_train(self, runner: Runner) -> None:
        self.report(runner)

    def report(self, runner: Runner) -> None:
        """Pass the last scores to the checkpoint hook and to the early-stopping hook.

        This happens between two steps, because the runner's counters are correct only then.
        """
        metrics = self.measured
        self.measured = None
        for hook in runner.hooks if metrics else ():
            if isinstance(hook, EarlyStoppingHook) and hook.monitor in metrics:
                hook.after_val_epoch(runner, metrics)
            if isinstance(hook, CheckpointHook) and _chooses_by(hook, metrics):
                last = hook.last_ckpt
                # If `last_ckpt` were set, mmengine would write the last checkpoint again.
                hook.last_ckpt = None
                hook.after_val_epoch(runner, metrics)
                hook.last_ckpt = last


def _chooses_by(hook: CheckpointHook, metrics: Mapping[str, float]) -> bool:
    return bool(hook.save_best) and {'auto', *metrics}.issuperset(hook.key_indicators)


@HOOKS.register_module()
class OnlineKNNHook(SelectionHook):
    """Measure k-NN accuracy during training, on held-out images of the config's `evaluation`.

    The held-out images are `evaluation.val`. If this key is not set, a part of the training images is held out. Images of
    one group, such as all images of a patient, are held out together (`evaluation.groups`). Unless `images` is 'test', test
    images are not read, so it is safe to choose a checkpoint by `default_hooks.checkpoint.save_best='knn_accuracy'`.

    Each process extracts a share of the features with a copy of the backbone, and classifies a share of the images. The
    processes exchange features through files in the work dir, which are then removed. Training is bit-identical with and
    without the hook, because the hook changes neither the student nor the random state.

    Args:
        interval: Number of epochs between two measurements. Default: 10.
        k: Number of neighbors. Default: 20.
        images: Images to measure on, 'held_out' or 'test'. If it is 'test', pages report that the run watched the test
            images. Default: 'held_out'.

    Raises:
        UserError: If `images` is unknown, or if the config has no labeled data.
    """

    priority = 'LOW'

    def __init__(
        self, interval: int = 10, k: int = 20, images: Literal['held_out', 'test'] = 'held_out'
    ) -> None:
        if images not in ('held_out', 'test'):
            raise UserError(
                f"OnlineKNNHook.images: expected held_out or test ('{images}')",
                code='unknown-images',
            )
        self.interval = interval
        self.k = k
        self.images = images
        self.score = 'knn_accuracy' if images == 'held_out' else TEST_SCORE

    def before_train(self, runner: Runner) -> None:
        data = evaluation_data(runner.cfg)
        bank, queries = held_out(data) if self.images == 'held_out' else (data.train, data.test)
        self.data = dict(bank=DATASETS.build(bank), queries=DATASETS.build(queries))
        model = network_of(runner)
        for dataset in self.data.values():
            require_channels(dataset, model.data_preprocessor.mean, model.backbone)

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch=None, outputs=None
    ) -> None:
        # The interval is converted to iterations, because mmengine treats an iteration-based run as one long epoch.
        if not self.every_n_train_iters(runner, self.interval * len(runner.train_dataloader)):
            return
        with same_randomness():
            train, test = self._features(runner)
        k = min(self.k, len(train.y))
        device = next(runner.model.parameters()).device
        right = knn_right(train, test, [k], device=device)[k]
        accuracy = 100 * int(right.sum()) / len(right)
        if is_main_process():
            runner.visualizer.add_scalars({self.score: accuracy}, step=runner.iter + 1)
            runner.message_hub.update_scalar(f'train/{self.score}', accuracy)
            runner.logger.info(f'online k-NN, k = {k}, {self.images} images: {accuracy:.1f} %')
        self.measured = {self.score: accuracy}
        barrier()

    def _features(self, runner: Runner) -> list[Features]:
        model = network_of(runner)
        mean = model.data_preprocessor.mean.flatten().tolist()
        std = model.data_preprocessor.std.flatten().tolist()
        workers = runner.cfg.train_dataloader.get('num_workers', 0)
        device = next(model.parameters()).device
        how = Extraction(mean, std, device=device, workers=workers)
        backbone = copy.deepcopy(model.backbone)
        features = []
        for name, dataset in self.data.items():
            path = Path(runner.work_dir) / f'online_knn_{name}.npy'
            path.unlink(missing_ok=True)  # A killed run may have left this file behind.
            barrier()
            features.append(stored(path, backbone, dataset, how))
            barrier()
            # After the file is removed, the features stay readable, because they are memory-mapped.
            path.unlink(missing_ok=True)
        return features


@HOOKS.register_module()
class OnlineProbeHook(SelectionHook):
    """Train a linear classifier (the probe) during pre-training, on the student's pooled features of the first view.

    The probe has its own SGD optimizer. The student gets no gradient from it and is bit-identical with and without the hook.
    The probe is saved and resumed with the run.

    The learning rates are those in the released code of the ECCV 2022 paper (see README.md). The default is 30, divided by 10
    after 60 % and again after 80 % of the run. For pre-training with LARS, the released code uses 0.2 with a cosine schedule.
    The released code differs from this hook in two points: its probe uses the last view, and it divides the learning rate
    after epochs 60 and 80, regardless of the length of the run.

    Args:
        classes: Number of classes of the training set. Images with a negative label are ignored.
        lr: Learning rate of the probe. Default: 30.
        schedule: 'steps' or 'cosine'. Default: 'steps'.
        held_out: Fraction of each class that the probe is not trained on. After each epoch, the accuracy on these images is
            logged as `probe_held_out_accuracy`, which `save_best` can use. Images of one group, such as all images of a
            patient, are held out together (`evaluation.groups`). Default: 0.

    Raises:
        UserError: If there are fewer than two classes, the schedule is unknown, the training set has no labels, or a label is
            not below `classes`.
    """

    def __init__(
        self, classes: int, lr: float = 30.0, schedule: str = 'steps', held_out: float = 0.0
    ) -> None:
        if classes < 2:
            raise UserError(
                f"OnlineProbeHook: expected at least two classes ('{classes}'); set `classes` to the number of classes",
                code='few-classes',
            )
        if schedule not in ('steps', 'cosine'):
            raise UserError(
                f"OnlineProbeHook: unknown schedule ('{schedule}'); expected steps or cosine",
                code='unknown-schedule',
            )
        self.classes = classes
        self.lr = lr
        self.schedule = schedule
        self.held_out = held_out
        self.held: Tensor | None = None
        self.probe: nn.Linear | None = None
        self.resumed: dict | None = None

    def before_train(self, runner: Runner) -> None:
        model = network_of(runner)
        self.handle = model.backbone.register_forward_hook(partial(self._keep, model))
        self.features: Tensor | None = None
        if not runner.iter:
            # The checkpoint of `load_from` belongs to another run, so the probe in the checkpoint is not restored.
            self.resumed = None
        if self.held_out:
            self._require_labels(runner, torch.tensor(UNKNOWN))
            settings = runner.cfg.get('evaluation') or {}
            dataset = runner.train_dataloader.dataset
            self.held = self.hold_out(dataset, settings.get('groups'))
            # The two counts of this epoch: correctly classified held-out images, and all held-out images.
            self.counts = torch.zeros(2)

    def hold_out(self, dataset: Dataset, groups: Groups | None) -> Tensor:
        """Return a mask of the images that are held out.

        Only labeled images are held out, so unlabeled images need no group.
        """
        rows = (dataset.labels > UNKNOWN).nonzero().flatten()
        group_names = None
        if groups:
            names = image_names(dataset)
            labeled = [names[row] for row in rows.tolist()]
            group_names = groups_of(labeled, groups)
        _, held = split_by_class(dataset.labels[rows], 0, self.held_out, group_names)
        is_held = torch.zeros(len(dataset), dtype=torch.bool)
        is_held[rows[held]] = True
        return is_held

    def _keep(
        self, model: nn.Module, module: nn.Module, inputs: tuple, output: Tensor | tuple
    ) -> None:
        """Keep the pooled features of the first view in each training step.

        The backbone can run several times in a step. The first output contains the first view.
        """
        if self.features is None and module.training:
            features = first_view(model, pooled(output).detach())
            precision = torch.promote_types(features.dtype, torch.float32)
            self.features = features.to(precision)

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict, outputs=None
    ) -> None:
        features = self.features
        self.features = None
        samples = data_batch.get('data_samples') or {}
        labels = samples.get('label')
        highest = torch.tensor(UNKNOWN) if labels is None else labels.max()
        if highest >= self.classes:
            raise UserError(
                f"OnlineProbeHook.classes: '{self.classes}' is too small, because the training set has the label {highest} and "
                'labels start at 0; set the number of classes',
                code='label-out-of-range',
            )
        if self.probe is None:
            self._require_labels(runner, highest)
            self._build(features)
        if self.held is not None:
            held = self.held[samples['index']] & (labels > UNKNOWN)
            self._measure(features[held], labels[held])
            labels = labels.masked_fill(held, UNKNOWN)
            if self.every_n_train_iters(runner, len(runner.train_dataloader)):
                self._end_epoch(runner)
        # If the loader has pinned the memory of the labels, this copy does not block.
        labels = labels.to(features.device, non_blocking=True)
        progress = runner.iter / runner.max_iters
        accuracy = self._step(features, labels.clamp(min=UNKNOWN), progress)
        outputs['probe_accuracy'] = accuracy

    @torch.no_grad()
    def _measure(self, features: Tensor, labels: Tensor) -> None:
        predicted = self.probe(features).argmax(dim=1).cpu()
        right = predicted == labels
        self.counts += torch.tensor([int(right.sum()), len(right)])

    def _end_epoch(self, runner: Runner) -> None:
        all_reduce(self.counts)
        right, images = self.counts
        accuracy = 100 * float(right / images.clamp(min=1))
        self.counts.zero_()
        self.measured = {'probe_held_out_accuracy': accuracy}
        runner.message_hub.update_scalar('train/probe_held_out_accuracy', accuracy)

    def _require_labels(self, runner: Runner, highest: Tensor) -> None:
        # The highest label of all processes is checked, because the first batch of a process may have no labels by chance.
        all_reduce(highest, 'max')
        labels = getattr(runner.train_dataloader.dataset, 'labels', UNKNOWN)
        if max(highest, torch.as_tensor(labels).max()) <= UNKNOWN:
            raise UserError(
                'OnlineProbeHook: requires labels, but the training set has none; add labels, or remove the hook',
                code='no-labels',
            )

    def _build(self, features: Tensor) -> None:
        """Create the probe with small normal weights, equal in all processes. The run's random state does not change."""
        width = features.shape[1]
        self.probe = nn.Linear(width, self.classes, device='meta', dtype=features.dtype)
        self.probe.to_empty(device=features.device)
        generator = torch.Generator().manual_seed(0)
        start = torch.randn(self.probe.weight.shape, generator=generator)
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
        """Train the probe for one step and return its accuracy before the step.

        The loss ignores images with unknown labels. Removing these images from the batch would make the CPU wait for the
        GPU.
        """
        self.optimizer.param_groups[0]['lr'] = self.lr_at(progress)
        scores = self.probe(features)
        known = (labels != UNKNOWN).sum().clamp(min=1)  # If a batch has no labels, divide by 1.
        loss = F.cross_entropy(scores, labels, ignore_index=UNKNOWN, reduction='sum') / known
        gradients = torch.autograd.grad(loss, list(self.probe.parameters()))
        for parameter, gradient in zip(self.probe.parameters(), gradients):
            all_reduce(gradient, 'mean')
            # If a batch has a non-finite loss, the run skips its step. The probe must not learn from this batch, either.
            parameter.grad = gradient.nan_to_num_(0.0, 0.0, 0.0)
        self.optimizer.step()
        right = scores.detach().argmax(dim=1) == labels
        accuracy = right.sum() / known
        all_reduce(accuracy, 'mean')
        return accuracy

    def lr_at(self, progress: float) -> float:
        """Return the learning rate after the fraction `progress` of the run."""
        if self.schedule == 'cosine':
            return self.lr * (1 + math.cos(math.pi * progress)) / 2
        return self.lr * next(factor for start, factor in STEPS if progress >= start)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if self.probe is not None:
            checkpoint['online_probe'] = dict(
                probe=self.probe.state_dict(), optimizer=self.optimizer.state_dict()
            )

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.resumed = checkpoint.get('online_probe')

    def after_train(self, runner: Runner) -> None:
        super().after_train(runner)
        self.handle.remove()
