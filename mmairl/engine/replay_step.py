"""Replay one iteration of a run and record the loss and the gradient of each image."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from mmairl.engine.batches import images_per_step, sampler_of
from mmairl.engine.checkpoint import NOTE, StoredCheckpoint
from mmairl.engine.fork import Fork, checkpoints_of_run
from mmairl.engine.optim.gradients import gradients_of
from mmairl.engine.replay import Reached, StopAt, rerun, stretches_of
from mmairl.errors import UserError
from mmairl.io import read_text
from mmairl.models.heads.base import unit
from mmairl.models.processes import network_of, norms
from mmairl.models.queue import KeyQueue
from mmairl.models.siamese import Siamese

# The record of an image lists this many keys of the queue.
NEAREST = 3
# The loss of a batch and the mean of its images' losses count as equal up to this relative difference.
CLOSE = 1e-3


@dataclass
class StepRecord:
    """What happened in one iteration, in total and for each image.

    Attributes:
        iteration: The number of the iteration; the first is 1.
        items: For each image, its index in the data set and the seed of its views.
        dataset: The training set.
        views: The normalized views, as the model receives them.
        preprocessor: The model's data preprocessor.
        values: Loss and logged values. If the iteration ends an optimizer step, also the learning rate and the gradient norm.
        losses: The loss of each image, or None if the loss of the batch is not the mean of its images' losses.
        gradients: For each image, the norm of the loss's gradient with respect to its queries, times the batch size.
        nearest: For each image, the keys of the queue that are most similar to its first query. A key is described by its
            cosine with the query and by its age, the number of keys that entered the queue after it.
    """

    iteration: int
    items: list[tuple[int, int]] = field(default_factory=list)
    dataset: Any = None
    views: list[Tensor] = field(default_factory=list)
    preprocessor: nn.Module | None = None
    values: dict[str, float] = field(default_factory=dict)
    losses: Tensor | None = None
    gradients: Tensor | None = None
    nearest: list[list[tuple[float, int]]] = field(default_factory=list)


class RecordAt(Hook):
    """Record an iteration and end the run.

    Args:
        iteration: The number of the iteration; the first is 1.
        prepare: A function that is called with the runner before the iteration, for example to record the transforms.
    """

    # The hook reads the queue before MomentumHook adds the keys of this step.
    priority = 'ABOVE_NORMAL'

    def __init__(self, iteration: int, prepare: Callable[[Runner], None] | None = None) -> None:
        self.record = StepRecord(iteration)
        self.prepare = prepare
        self.handles: list[Any] = []

    def before_train_iter(self, runner: Runner, **_: object) -> None:
        if runner.iter + 1 != self.record.iteration:
            return
        model = network_of(runner)
        if not isinstance(model, Siamese):
            raise UserError(
                f"replay --step: requires a model with queries and keys ('{type(model).__name__}'); use --check",
                code='no-embeddings',
            )
        if self.prepare:
            self.prepare(runner)
        # Gradients include the loss scale, which is 1 unless the run uses float16. With gradient accumulation, they are divided
        # by the number of batches.
        wrapper = runner.optim_wrapper
        self.scale = wrapper.loss_scaler.get_scale() * wrapper.scale_loss(torch.ones(())).item()
        self.record.items = _items(runner)
        self.record.dataset = runner.train_dataloader.dataset
        self.record.preprocessor = model.data_preprocessor
        self.handles = [
            model.register_forward_pre_hook(self._keep_views, with_kwargs=True),
            model.head.register_forward_hook(self._keep_embeddings),
            runner.optim_wrapper.optimizer.register_step_pre_hook(self._keep_norm),
        ]

    def _keep_views(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        inputs = args[0] if args else kwargs['inputs']
        self.record.views = [view.detach().float().cpu() for view in inputs]

    def _keep_embeddings(self, head: nn.Module, args: tuple, outputs: dict) -> None:
        queries, keys, negatives = args
        self.queries = queries
        for rows in queries.values():
            rows.retain_grad()
        self.record.values = {name: float(value.detach()) for name, value in outputs.items()}
        self.record.losses = losses_by_image(
            head, queries, keys, negatives, self.record.values['loss']
        )

    def _keep_norm(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self.record.values['gradient_norm'] = norms(gradients_of(optimizer)).norm().item()
        self.record.values['lr'] = optimizer.param_groups[0]['lr']

    def after_train_iter(self, runner: Runner, **_: object) -> None:
        if runner.iter + 1 != self.record.iteration:
            return
        for handle in self.handles:
            handle.remove()
        gradients = torch.stack([rows.grad.float().norm(dim=1) for rows in self.queries.values()])
        self.record.gradients = gradients.norm(dim=0).cpu() * gradients.shape[1] / self.scale
        queue = network_of(runner).queue
        if isinstance(queue, KeyQueue):
            first = next(iter(self.queries.values())).detach()
            self.record.nearest = nearest_keys(first, queue)
        raise Reached


def _items(runner: Runner) -> list[tuple[int, int]]:
    """Return the index and the seed of each image in the next batch."""
    loader = runner.train_dataloader
    sampler = sampler_of(loader)
    epoch, done = divmod(runner.iter, len(loader))
    sampler.set_epoch(epoch, done * images_per_step(loader))
    return list(islice(iter(sampler), images_per_step(loader)))


@torch.no_grad()
def losses_by_image(
    head: nn.Module,
    queries: Mapping[int, Tensor],
    keys: Mapping[int, Tensor],
    negatives: Tensor | None,
    loss: float,
) -> Tensor | None:
    """Return the loss of each image alone, or None if the mean of these losses is not the loss of the batch.

    The mean differs from the loss of the batch if the head compares the images of a batch with each other.
    """
    count = len(next(iter(queries.values())))
    losses = []
    for row in range(count):
        query = {view: rows[row : row + 1] for view, rows in queries.items()}
        key = {view: rows[row : row + 1] for view, rows in keys.items()}
        losses.append(head.forward(query, key, negatives)['loss'].float())
    losses = torch.stack(losses).cpu()
    same = abs(losses.mean().item() - loss) <= CLOSE * max(abs(loss), CLOSE)
    return losses if same else None


def nearest_keys(queries: Tensor, queue: KeyQueue) -> list[list[tuple[float, int]]]:
    """Return the nearest keys of each query. A key is given as its cosine with the query and its age.

    The age of a key is the number of keys that entered the queue after it.
    """
    vectors = queue.negatives().float()
    cosines, rows = (unit(queries.float()) @ vectors.T).topk(min(NEAREST, len(vectors)))
    ages = (queue.position - 1 - rows) % queue.length
    return [list(zip(one, other)) for one, other in zip(cosines.tolist(), ages.tolist())]


def replay_step(
    work_dir: Path,
    step: int,
    options: Mapping[str, Any] | None = None,
    prepare: Callable[[Runner], None] | None = None,
) -> list[StepRecord]:
    """Repeat one iteration of a run and record what happens in it.

    Training starts from the nearest checkpoint before the iteration.

    Args:
        work_dir: The work dir of the run. Nothing is written there.
        step: The number of the iteration; the first is 1.
        options: Changed settings for a second replay of the iteration, by dotted key. See `fork.py` for the allowed keys.
        prepare: A function that is called with the runner before each replay.

    Returns:
        A list with the record of the replay. If `options` are given, the record of the second replay follows.
    """
    start = start_of(work_dir, step)
    with tempfile.TemporaryDirectory(prefix='mmairl-replay-') as folder:
        before = _state_before(work_dir, step, start, f'{folder}/before')
        records = []
        for number, changes in enumerate([{}, options] if options else [{}]):
            recorder = RecordAt(step, prepare)
            cfg = Fork(work_dir).config(changes)
            rerun(work_dir, cfg, before, f'{folder}/{number}', recorder)
            records.append(recorder.record)
    return records


def start_of(work_dir: Path, step: int) -> StoredCheckpoint | None:
    """Return the nearest checkpoint before an iteration, or None for the initial weights."""
    stored = checkpoints_of_run(work_dir)
    last = stored[-1].iteration
    if not 1 <= step <= last:
        raise UserError(
            f"--step: the iteration is not between 1 and the last checkpoint ('{step}'); choose an iteration from 1 to {last}",
            code='no-such-step',
        )
    before = [checkpoint for checkpoint in stored if checkpoint.iteration < step]
    if before:
        return before[-1]
    stretches = stretches_of(work_dir)
    if not stretches or stretches[0].start is not None:
        raise UserError(
            f"--step: no checkpoint before iteration '{step}', and the run did not start from scratch; choose an iteration "
            f'after {stored[0].iteration}',
            code='no-such-step',
        )
    return None


def _state_before(
    work_dir: Path, step: int, start: StoredCheckpoint | None, folder: str
) -> StoredCheckpoint | None:
    """Return the checkpoint at which the optimizer step of an iteration begins, or None for the initial weights.

    With gradient accumulation, an optimizer step has several iterations. If the run has no checkpoint at the beginning of the
    step, the run is repeated from `start` up to that point, and a checkpoint is written to `folder`.
    """
    first = start.iteration if start else 0
    cfg = Fork(work_dir).config()
    accumulated = cfg.optim_wrapper.get('accumulative_counts', 1)
    last = (step - 1) // accumulated * accumulated
    if first == last:
        return start
    cfg.merge_from_dict(
        {'default_hooks.checkpoint.by_epoch': False, 'default_hooks.checkpoint.interval': last}
    )
    rerun(work_dir, cfg, start, folder, StopAt(last))
    return StoredCheckpoint(Path(read_text(Path(folder) / NOTE)), dict(iter=last))
