"""How good the features are while they are being learnt: a linear classifier beside pre-training."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from mmengine.dist import all_reduce, broadcast
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from mmairl.engine.hooks.progress import record
from mmairl.errors import UserError
from mmairl.models.backbones import pooled
from mmairl.models.norm import first_view
from mmairl.models.processes import network_of
from mmairl.registry import HOOKS

UNKNOWN = -1  # the label of an image whose class is not known


@HOOKS.register_module()
class OnlineProbeHook(Hook):
    """Trains a linear classifier on the detached pooled features of the student's first view, with an SGD of its own.

    The release's rates: 30 in steps of a tenth, or with LARS 0.2 along a cosine. The steps are after 60 and 80 % of the run;
    in the release, which probes the last view, they are after epochs 60 and 80 of a run of any length. The student gets no
    gradient from it and is the same to the last bit without it. The state is saved and resumed with the run.

    Args:
        classes: how many the data set has; negative labels are left out.
        lr: the probe's learning rate.
        schedule: 'steps' or 'cosine'.
    """

    def __init__(self, classes: int, lr: float = 30.0, schedule: str = 'steps') -> None:
        if classes < 2 or schedule not in ('steps', 'cosine'):
            raise UserError(
                f"OnlineProbeHook wants 2 classes or more and a schedule 'steps' or 'cosine', not {classes}, {schedule!r}"
            )
        self.classes, self.lr, self.schedule = classes, lr, schedule
        self.probe: nn.Linear | None = None
        self.resumed: dict | None = None

    def before_train(self, runner: Runner) -> None:
        model = network_of(runner)
        self.handle = model.backbone.register_forward_hook(partial(self._keep, model))
        self.features: Tensor | None = None
        if not runner.iter:
            self.resumed = None  # of a run that `load_from` took weights from

    def _keep(self, model: nn.Module, module: nn.Module, inputs: tuple, output: Tensor | tuple) -> None:
        """The first training-mode output of the step, which is the first view's."""
        if self.features is None and module.training:
            features = first_view(model, pooled(output).detach())
            self.features = features.to(torch.promote_types(features.dtype, torch.float32))

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: dict, outputs=None) -> None:
        features, self.features = self.features, None
        labels = (data_batch.get('data_samples') or {}).get('label')
        highest = torch.tensor(-1) if labels is None else labels.max()
        if highest >= self.classes:
            raise UserError(f'the training set has label {highest} and OnlineProbeHook {self.classes} classes')
        if self.probe is None:
            all_reduce(highest, 'max')  # another process's first batch may have labels
            known = torch.as_tensor(getattr(runner.train_dataloader.dataset, 'labels', UNKNOWN)) > UNKNOWN
            if highest < 0 and not known.any():
                raise UserError('the online probe needs labels and the training set has none; remove OnlineProbeHook')
            self._build(features)
        labels = labels.to(features.device, non_blocking=True)  # pinned as the loader has pinned it
        accuracy = self._step(features, labels.clamp(min=UNKNOWN), runner.iter / runner.max_iters)
        record(runner.message_hub, 'train/probe_accuracy', accuracy)

    def _build(self, features: Tensor) -> None:
        """A small normal start, drawn without touching the run's own random numbers and the same in all processes."""
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
        """One step, and the accuracy before it; unknown labels count for nothing without being cut out, which would wait."""
        self.optimizer.param_groups[0]['lr'] = self.lr_at(progress)
        scores = self.probe(features)
        known = (labels != UNKNOWN).sum().clamp(min=1)  # of a set that is labelled in part, a batch may have no label
        loss = F.cross_entropy(scores, labels, ignore_index=UNKNOWN, reduction='sum') / known
        gradients = torch.autograd.grad(loss, list(self.probe.parameters()))
        for parameter, gradient in zip(self.probe.parameters(), gradients):
            all_reduce(gradient, 'mean')
            parameter.grad = gradient.nan_to_num_(0.0, 0.0, 0.0)  # a batch whose step is left out moves nothing here
        self.optimizer.step()
        accuracy = (scores.detach().argmax(dim=1) == labels).sum() / known
        all_reduce(accuracy, 'mean')
        return accuracy

    def lr_at(self, progress: float) -> float:
        """The rate when this part of the run is done."""
        if self.schedule == 'cosine':
            return self.lr * (1 + math.cos(math.pi * progress)) / 2
        return self.lr * (0.01 if progress >= 0.8 else 0.1 if progress >= 0.6 else 1.0)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if self.probe is not None:
            checkpoint['online_probe'] = dict(probe=self.probe.state_dict(), optimizer=self.optimizer.state_dict())

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.resumed = checkpoint.get('online_probe')

    def after_train(self, runner: Runner) -> None:
        self.handle.remove()
