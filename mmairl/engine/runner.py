"""mmengine's runner with checkpoints that hold what an exact resume takes, and loops that begin where a checkpoint ends."""

import logging
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from itertools import chain, count, islice, repeat
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dist import get_world_size, master_only
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import print_log
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop
from mmengine.runner import Runner as PlainRunner
from mmengine.runner.base_loop import BaseLoop
from mmengine.utils import apply_to
from torch import nn
from torch.utils.data import DataLoader, Sampler

from mmairl.config import python_text, write_config
from mmairl.data.datasets import innermost_dataset
from mmairl.data.sampler import ResumableSampler
from mmairl.data.training_images import TrainingImages, require_a_batch
from mmairl.data.workers import delivered, explained_deaths, safe
from mmairl.engine.checkpoint import Checkpointed
from mmairl.engine.speed import lay_out, make_fast
from mmairl.errors import UserError, building
from mmairl.io import write_text
from mmairl.models.processes import network_of
from mmairl.registry import DATASETS, HOOKS
from mmairl.signals import obey_parent_only

RUNS = count()  # of this process


class Runner(Checkpointed, PlainRunner):
    """One process, several with the whole model each, or, with a `strategy`, several with a part of it.

    Trains through `EpochLoop` or `IterLoop`, on images that draw their own random numbers. A loop that a config names by its
    type is used as it is.
    """

    def __init__(
        self, *args: Any, cfg: Config | None = None, experiment_name: str | None = None, **kwargs: Any
    ) -> None:
        # mmengine keeps one visualizer and log a name, and its own names differ by the second
        name = experiment_name or f'{Path(getattr(cfg, "filename", None) or "run").stem}_{next(RUNS)}'
        super().__init__(*args, cfg=cfg, experiment_name=name, **kwargs)

    @master_only
    def dump_config(self) -> None:
        """Leave the config in the work dir as mmengine does, which would follow a link there."""
        source = Path(self.cfg.filename or f'{self.timestamp}.py')
        path = Path(self.work_dir) / source.name
        if path.resolve() == source.resolve():
            return  # the run goes on by the config that it has left
        write_text(path, python_text(self.cfg)) if path.suffix == '.py' else write_config(self.cfg, path)

    def build_train_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        if isinstance(loop, BaseLoop) or 'type' in loop:
            return super().build_train_loop(loop)
        settings = dict(loop)
        kind = EpochLoop if settings.pop('by_epoch') else IterLoop
        return kind(self, self._build_train_dataloader(), **settings)

    def register_hook(self, hook: Hook | dict, priority: int | str | None = None) -> None:
        """Register ExactCheckpointHook for mmengine's CheckpointHook, from which no run can be resumed exactly."""
        kind = hook.get('type') if isinstance(hook, dict) else None
        if (HOOKS.get(kind) if isinstance(kind, str) else kind) is CheckpointHook:
            hook = {**hook, 'type': 'mmairl.ExactCheckpointHook'}
        super().register_hook(hook, priority)

    def train(self) -> nn.Module:
        with explained_deaths():
            return super().train()

    def register_default_hooks(self, hooks: dict[str, Hook | dict | None] | None = None) -> None:
        """A hook that a config sets to None is left out; mmengine takes that for the six that it knows itself."""
        known = ('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint')
        kept = {name: hook for name, hook in (hooks or {}).items() if hook is not None or name in known}
        super().register_default_hooks(kept)

    def _build_train_dataloader(self) -> DataLoader:
        if isinstance(self._train_dataloader, DataLoader):
            return self._train_dataloader
        dataset = DATASETS.build(self._train_dataloader['dataset'])
        if hasattr(dataset, 'full_init'):
            dataset.full_init()
        dataset = TrainingImages(dataset, workers=bool(self._train_dataloader.get('num_workers')))
        own = self._randomness_cfg.get('diff_rank_seed', False)
        loader = self.build_dataloader({**self._train_dataloader, 'dataset': dataset}, self.seed, own)
        loader.generator = torch.Generator()  # else each start of the workers draws from the run's own
        loader.worker_init_fn = partial(obey_parent_only, then=loader.worker_init_fn)
        require_a_batch(loader)
        weighed = getattr(innermost_dataset(dataset), 'per_epoch', None) is not None
        if weighed and getattr(sampler_of(loader), 'counts', None) is None:
            raise UserError(
                'Mixture.weights count where the Mixture is train_dataloader.dataset itself, in no other data set, and the '
                "sampler is dict(type='ResumableSampler', shuffle=True); set these, or leave the weights out"
            )
        return safe(loader)

    def build_model(self, model: nn.Module | dict) -> nn.Module:
        fast = dict(self.cfg.get('fast') or {})
        if self.cfg.get('strategy'):
            fast.pop('compile', None)  # untried with weights that are put together in each forward pass
        return make_fast(super().build_model(model), fast)

    def wrap_model(self, model_wrapper_cfg: dict | None, model: nn.Module) -> nn.Module:
        if not self.cfg.get('strategy'):
            return super().wrap_model(model_wrapper_cfg, model)
        from mmairl.engine.sharding.zero import shard  # torch's sharding takes a second to import

        return shard(model, self.cfg.strategy)

    def _init_model_weights(self) -> None:
        """In the default layout: random numbers are drawn in the order in which a weight lies in memory."""
        if self.cfg.get('strategy'):
            return  # done before the weights were cut up
        self.model.to(memory_format=torch.contiguous_format)
        with building('the initial weights'):
            super()._init_model_weights()
        lay_out(self.model, self.cfg.get('fast'))

    def prepare(self) -> None:
        """Build what is left to build, which `train` finds done."""
        self.optim_wrapper = self.build_optim_wrapper(self.optim_wrapper)
        if self.cfg.get('strategy'):
            from mmairl.engine.sharding.zero import shard_optimizer

            shard_optimizer(self.optim_wrapper)

    def scale_lr(self, optim_wrapper: Any, auto_scale_lr: dict | None = None) -> None:
        """By all images of an optimizer step; mmengine's own leaves out those of accumulated batches."""
        if auto_scale_lr and auto_scale_lr.get('enable'):
            steps = (self.cfg.get('optim_wrapper') or {}).get('accumulative_counts', 1)
            auto_scale_lr = {**auto_scale_lr, 'base_batch_size': auto_scale_lr['base_batch_size'] / steps}
        super().scale_lr(optim_wrapper, auto_scale_lr)

    def build_param_scheduler(self, scheduler: Any) -> Any:
        with building('param_scheduler'):
            return super().build_param_scheduler(scheduler)

    def _weights(self) -> OrderedDict[str, Any]:
        if self.cfg.get('strategy'):
            from mmairl.engine.sharding.zero import whole_weights

            return whole_weights(self.model)
        return network_of(self).state_dict()


class EpochLoop(EpochBasedTrainLoop):
    """mmengine's loop over epochs, of which the first may be one that was left in the middle."""

    def run_epoch(self) -> None:
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        done = self._iter - self._epoch * len(self.dataloader)
        for place, batch in enumerate(sent_ahead(batches(self.dataloader, self._epoch, done)), done):
            self.run_iter(place, batch)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1


class IterLoop(IterBasedTrainLoop):
    """mmengine's loop over iterations, which would read every image again that a resumed run has seen."""

    def __init__(self, runner: PlainRunner, dataloader: DataLoader, *args, **kwargs) -> None:
        # mmengine begins to read here, at the start of the first epoch: a loader without workers or the run's sampler takes
        # that, since samplers that are one stream, as mmengine's InfiniteSampler, end when a reader of them is dropped
        idle = DataLoader(dataloader.dataset, generator=dataloader.generator)
        super().__init__(runner, idle, *args, **kwargs)
        self.dataloader = dataloader

    def run(self) -> nn.Module:
        # mmengine's loop passes over as many batches as the run has taken; here these cost nothing
        seen = repeat(None, self._iter)
        self.dataloader_iterator = chain(seen, sent_ahead(endless(self.dataloader, self._iter)))
        return super().run()


def batches(dataloader: DataLoader, epoch: int, done: int) -> Iterator[dict]:
    """An epoch's batches after the first `done`, which are skipped as indices: none of their images is read.

    Other samplers than ours begin at an epoch's start only; then what was seen is read again and dropped, as in mmengine.
    """
    sampler = sampler_of(dataloader)
    if isinstance(sampler, ResumableSampler):
        sampler.set_epoch(epoch, done * images_per_step(dataloader))
        return delivered(dataloader)
    if hasattr(sampler, 'set_epoch'):
        sampler.set_epoch(epoch)
    if done:
        said = f'{type(sampler).__name__} cannot begin inside an epoch: {done} batches are read again to get there'
        print_log(said, logger='current', level=logging.WARNING)
    return islice(delivered(dataloader), done, None)


def sent_ahead(batches: Iterator[dict]) -> Iterator[dict]:
    """On a GPU, the next batch's images are copied on a stream of their own while this one's step computes."""
    if not torch.cuda.is_available():
        yield from batches
        return
    copies, before = torch.cuda.Stream(), None
    for batch in batches:
        with torch.cuda.stream(copies):
            sent = dict(batch, inputs=to_device(batch['inputs'])), copies.record_event()
        if before is not None:
            yield arrived(*before)
        before = sent
    if before is not None:
        yield arrived(*before)


def to_device(inputs: Any) -> Any:
    """Pinned images on their way to the GPU; others would make the host wait, and stay for the preprocessor."""
    return apply_to(
        inputs, lambda part: torch.is_tensor(part) and part.is_pinned(), lambda part: part.cuda(non_blocking=True)
    )


def arrived(batch: dict, copied: torch.cuda.Event) -> dict:
    """The batch for the stream that computes, which waits for the copies; the host does not."""
    stream = torch.cuda.current_stream()
    stream.wait_event(copied)
    # so that its memory is not given away before this stream has read it
    apply_to(
        batch['inputs'], lambda part: torch.is_tensor(part) and part.is_cuda, lambda part: part.record_stream(stream)
    )
    return batch


def endless(dataloader: DataLoader, iteration: int) -> Iterator[dict]:
    """The batches from this iteration on, epoch after epoch."""
    epoch, done = divmod(iteration, len(dataloader))
    while True:
        empty = not done
        for batch in batches(dataloader, epoch, done):
            empty = False
            yield batch
        if empty:  # and would be for ever
            raise UserError(
                f'{type(sampler_of(dataloader)).__name__} gives no batch in epoch {epoch + 1}, so that training cannot go on; '
                "set train_dataloader.sampler=dict(type='ResumableSampler', shuffle=True)"
            )
        epoch, done = epoch + 1, 0


def sampler_of(dataloader: DataLoader) -> Sampler:
    """The sampler of images, behind the one of batches where there is one."""
    return getattr(dataloader.batch_sampler, 'sampler', dataloader.sampler)


def images_per_step(dataloader: DataLoader) -> int:
    """How many images one iteration of all processes takes from the data set."""
    return (dataloader.batch_size or dataloader.batch_sampler.batch_size) * get_world_size()


def images_per_epoch(dataloader: DataLoader) -> int | list[int]:
    """How many images an epoch sees; of a Mixture with weights, how many of each set."""
    counts = getattr(dataloader.dataset, 'per_epoch', None)
    return len(dataloader.dataset) if counts is None else counts.tolist()
