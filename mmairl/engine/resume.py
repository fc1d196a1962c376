"""Save the state of a run for its checkpoints, and restore a run from a checkpoint.

mmengine restores the learning rate, weight decay, momentum and schedules of the checkpoint and ignores changes of the config.
Here, a changed value of the config replaces the checkpoint's, and the schedules of the config are stepped to the current
iteration. The log lists the changed settings. A change with which the run cannot continue, such as another batch size, raises
an error.
"""

import warnings
from typing import Any

from mmengine.dist import get_rank, get_world_size
from mmengine.hooks import EarlyStoppingHook
from mmengine.optim.scheduler.param_scheduler import _ParamScheduler
from mmengine.runner import Runner
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Sampler

from mmairl.data.sampler import ResumableSampler
from mmairl.engine.checkpoint import settings
from mmairl.errors import UserError
from mmairl.randomness import set_random_state

SEED = 'randomness.seed'


def sampler_of(dataloader: DataLoader) -> Sampler:
    """Return the sampler that orders the images. It may be inside a batch sampler."""
    return getattr(dataloader.batch_sampler, 'sampler', dataloader.sampler)


def images_per_step(dataloader: DataLoader) -> int:
    """Return the number of images that all processes together read in one iteration."""
    batch = dataloader.batch_size or dataloader.batch_sampler.batch_size
    return batch * get_world_size()


def fresh_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the settings of the parameter groups of a new optimizer, which a checkpoint stores."""
    kinds = bool | int | float | str | tuple | None
    return [
        {key: value for key, value in group.items() if isinstance(value, kinds)}
        for group in optimizer.param_groups
    ]


def stopping_hooks(runner: Runner) -> list[EarlyStoppingHook]:
    return [hook for hook in runner.hooks if isinstance(hook, EarlyStoppingHook)]


def progress(runner: Runner) -> dict[str, Any]:
    """Return the state of the run that a checkpoint holds in addition to weights, optimizer and random states."""
    loader = runner.train_dataloader
    # These values determine the order of the images.
    place = dict(
        images_per_step=images_per_step(loader),
        images=len(loader.dataset),
        steps=len(loader),
        seed=getattr(sampler_of(loader), 'seed', None),
    )
    patience = [(hook.best_score, hook.wait_count) for hook in stopping_hooks(runner)]
    return dict(message_hub=runner.message_hub.state_dict(), place=place, patience=patience)


def restore_run(runner: Runner, checkpoint: dict[str, Any]) -> None:
    """Restore everything but weights and random states. The runner has already loaded the weights."""
    meta = checkpoint['meta']
    runner.message_hub.load_state_dict(checkpoint['message_hub'])
    runner._randomness_cfg['seed'] = meta['seed']
    runner.set_randomness(**runner._randomness_cfg)
    # mmengine offers no public setter for the position of a loop.
    runner.train_loop._epoch = meta['epoch']
    runner.train_loop._iter = meta['iter']
    restore_optimizer(runner, checkpoint)
    for hook, state in zip(stopping_hooks(runner), checkpoint.get('patience', ())):
        hook.best_score, hook.wait_count = state
    restore_position(runner, checkpoint.get('place', {}))
    if changes := config_changes(meta.get('settings', {}), settings(runner.cfg)):
        listed = '\n  '.join(['the config differs from the one in the checkpoint:', *changes])
        runner.logger.warning(listed)


def restore_optimizer(runner: Runner, checkpoint: dict[str, Any]) -> None:
    """Load the state of the optimizer, and step its schedules to the current iteration.

    The groups of an optimizer hold both settings, such as the weight decay, and state, such as the step size that Prodigy has
    found. A value of the checkpoint is replaced only if the config has changed it: if it differs between the new optimizer of
    the run that wrote the checkpoint and the new optimizer of this run.
    """
    optimizer = runner.optim_wrapper.optimizer
    stored = checkpoint['meta'].get('groups', runner.groups)
    if [group.keys() for group in stored] != [group.keys() for group in runner.groups]:
        raise UserError(
            f'optim_wrapper.optimizer.type: {type(optimizer).__name__} cannot load the state of the optimizer in the '
            'checkpoint; use the config of the checkpoint, or load only its weights (load_from without resume)',
            code='other-optimizer',
        )
    step_schedules(runner)
    names = {schedule.param_name for schedule in runner.param_schedulers}
    names |= {f'initial_{name}' for name in names}
    scheduled = [{name: group[name] for name in names} for group in optimizer.param_groups]
    runner.optim_wrapper.load_state_dict(checkpoint['optimizer'])
    for group, old, new, values in zip(optimizer.param_groups, stored, runner.groups, scheduled):
        group.update({key: new[key] for key in new if new[key] != old[key]}, **values)


def follows_scores(schedule: _ParamScheduler) -> bool:
    """Return whether validation scores change the schedule."""
    return hasattr(schedule, 'patience')


def step_schedules(runner: Runner) -> None:
    """Step new schedules to the iteration of the run, one by one, because each value depends on the previous value."""
    length = len(runner.train_dataloader)
    steppable = [schedule for schedule in runner.param_schedulers if not follows_scores(schedule)]
    with warnings.catch_warnings():
        # Torch would warn that the schedule steps before the optimizer.
        warnings.simplefilter('ignore')
        for iteration in range(1, runner.iter + 1):
            epoch, rest = divmod(iteration, length)
            for schedule in steppable:
                if not schedule.by_epoch or (not rest and epoch <= runner.epoch):
                    schedule.step()


def restore_position(runner: Runner, place: dict[str, Any]) -> None:
    """Continue the order of images that a checkpoint describes, or raise if this run reads other images or batches."""
    now = progress(runner)['place']
    for key in ('images_per_step', 'images', 'steps'):
        before = place.get(key, now[key])
        if before != now[key]:
            raise UserError(
                f"train_dataloader: {key} is {before} in the checkpoint, but '{now[key]}' in this run; keep the data set and "
                'total_batch_size / accumulative_counts (the number of processes may change)',
                code='other-batches',
            )
    if place.get('seed') is not None:
        sampler_of(runner.train_dataloader).seed = place['seed']


def restore_randomness(runner: Runner) -> None:
    """Restore the random state of this process, and warn if a resumed run will differ from an uninterrupted run.

    The loops call this function before their first step.
    """
    if not runner.iter:
        return
    states = runner.random_states
    stored, processes = len(states), get_world_size()
    reasons = []
    if stored == processes:
        set_random_state(states[get_rank()])
    else:
        reasons.append(
            f'the checkpoint has the random states of {stored} processes, but there are {processes}, so the last bits of '
            'sums differ, and so do random numbers that a process draws for itself'
        )
    sampler = sampler_of(runner.train_dataloader)
    if not isinstance(sampler, ResumableSampler):
        reasons.append(
            f'{type(sampler).__name__} gives images no seeds, so their views differ; set '
            "train_dataloader.sampler=dict(type='ResumableSampler', shuffle=True)"
        )
    if any(map(follows_scores, runner.param_schedulers)):
        reasons.append('ReduceOnPlateauLR starts again from the learning rate of the config')
    for reason in reasons:
        runner.logger.warning(f'this run will differ from an uninterrupted run: {reason}')


def config_changes(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """List the settings that differ between a checkpoint (`old`) and the current config (`new`)."""
    if new.get(SEED) == 'None':
        # Without a seed in the config, the seed of the checkpoint applies.
        new = {**new, SEED: old.get(SEED)}
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return [f'{key}: {old.get(key)} -> {new.get(key)}' for key in keys]
