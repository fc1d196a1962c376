"""Restore a run from a checkpoint.

mmengine restores the learning rate, weight decay, momentum and schedules of the checkpoint and ignores changes of the config.
Here, a changed value of the config replaces the checkpoint's, and if a schedule has changed, all schedules are rebuilt and
stepped to the current iteration. The log lists the changed settings. A change with which the run cannot continue, such as
another batch size, raises an error.
"""

import ast
import warnings
from collections.abc import Sequence
from typing import Any

from mmengine.dist import get_rank, get_world_size
from mmengine.hooks import EarlyStoppingHook
from mmengine.optim.scheduler.param_scheduler import _ParamScheduler
from mmengine.runner import Runner
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Sampler

import mmairl
from mmairl.data.sampler import ResumableSampler
from mmairl.engine.checkpoint import settings
from mmairl.errors import UserError, explained
from mmairl.randomness import set_random_state

# The keys of a schedule's state that change during a run.
PROGRESS = (
    'last_step',
    '_global_step',
    '_last_value',
    'best',
    'num_bad_epochs',
    'cooldown_counter',
)
# The attributes of mmengine's EarlyStoppingHook that change during a run.
PATIENCE = ('best_score', 'wait_count')
SEED = 'randomness.seed'
MOST_ROWS = 20
ADVICE = 'use the config of the checkpoint, or load only its weights (load_from without resume)'


def position(dataloader: DataLoader) -> dict[str, Any]:
    """Return the values that determine the order of the images. A checkpoint stores them as 'place'."""
    return dict(
        images_per_step=images_per_step(dataloader),
        images=len(dataloader.dataset),
        steps=len(dataloader),
        seed=getattr(sampler_of(dataloader), 'seed', None),
    )


def sampler_of(dataloader: DataLoader) -> Sampler:
    """Return the sampler that orders the images. It may be inside a batch sampler."""
    return getattr(dataloader.batch_sampler, 'sampler', dataloader.sampler)


def images_per_step(dataloader: DataLoader) -> int:
    """Return the number of images that all processes together read in one iteration."""
    batch = dataloader.batch_size or dataloader.batch_sampler.batch_size
    return batch * get_world_size()


def fresh_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the settings of the parameter groups of a new optimizer, which a checkpoint stores."""
    return [
        {
            key: value
            for key, value in group.items()
            if isinstance(value, bool | int | float | str | tuple | None)
        }
        for group in optimizer.param_groups
    ]


def patience(runner: Runner) -> list[dict[str, float]]:
    """Return the state of the hooks that end a run early."""
    stopping = (hook for hook in runner.hooks if isinstance(hook, EarlyStoppingHook))
    return [{name: getattr(hook, name) for name in PATIENCE} for hook in stopping]


def restore_run(runner: Runner, checkpoint: dict[str, Any], path: str) -> None:
    """Restore everything but the weights, which the runner has already loaded.

    Args:
        runner: The runner to restore.
        checkpoint: The content of the checkpoint.
        path: The path of the checkpoint, for error messages.
    """
    with explained(f'{path}: the run cannot be resumed', ADVICE, code='malformed-checkpoint'):
        meta = checkpoint['meta']
        runner.message_hub.load_state_dict(checkpoint['message_hub'])
        if meta.get('seed') is not None:
            runner._randomness_cfg['seed'] = meta['seed']
            runner.set_randomness(**runner._randomness_cfg)
        # mmengine offers no public setter for the position of a loop.
        runner.train_loop._epoch = meta['epoch']
        runner.train_loop._iter = meta['iter']
        restore_optimizer(runner, checkpoint)
        stopping = (hook for hook in runner.hooks if isinstance(hook, EarlyStoppingHook))
        for hook, state in zip(stopping, checkpoint.get('patience', ())):
            vars(hook).update(state)
        restore_position(runner.train_dataloader, checkpoint.get('place', {}))
    warn_of_changes(runner, meta)


def restore_optimizer(runner: Runner, checkpoint: dict[str, Any]) -> None:
    """Load the state of the optimizer and its schedules.

    The groups of an optimizer hold both settings, such as the weight decay, and state, such as the step size that Prodigy has
    found. A value of the checkpoint is replaced only if the config has changed it: if it differs between the new optimizer of
    the run that wrote the checkpoint and the new optimizer of this run.
    """
    optimizer = runner.optim_wrapper.optimizer
    schedules = runner.param_schedulers or []
    stored = checkpoint['meta'].get('groups', runner.groups)
    if [group.keys() for group in stored] != [group.keys() for group in runner.groups]:
        raise UserError(
            f'optim_wrapper.optimizer.type: {type(optimizer).__name__} cannot load the state of the optimizer in the '
            f'checkpoint; {ADVICE}',
            code='other-optimizer',
        )
    states = checkpoint.get('param_schedulers') or []
    same = [schedule_settings(one.state_dict()) for one in schedules] == [
        schedule_settings(state) for state in states
    ]
    if not same:
        step_to(schedules, checkpoint['meta'], len(runner.train_dataloader))
    scheduled = {one.param_name for one in schedules} | {state['param_name'] for state in states}
    current = [{name: group[name] for name in scheduled} for group in optimizer.param_groups]
    runner.optim_wrapper.load_state_dict(checkpoint['optimizer'])
    for group, old, new, value in zip(optimizer.param_groups, stored, runner.groups, current):
        changes = {key: new[key] for key in new if new[key] != old[key]}
        initial = {f'initial_{key}': changes[key] for key in changes if f'initial_{key}' in group}
        group.update({**changes, **initial, **({} if same else value)})
    for schedule, state in zip(schedules, states if same else ()):
        schedule.load_state_dict(state)


def schedule_settings(state: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a schedule without its progress and without functions, which a checkpoint does not hold."""
    return {
        key: value for key, value in state.items() if key not in PROGRESS and not callable(value)
    }


def step_to(schedules: Sequence[_ParamScheduler], meta: dict[str, Any], epoch_length: int) -> None:
    """Step new schedules to the iteration in `meta`.

    The steps are taken one by one, because each value of a schedule depends on its previous value. A schedule that depends on
    validation scores starts again.
    """
    epochs = 0
    with warnings.catch_warnings():
        # Torch would warn that the schedule steps before the optimizer.
        warnings.simplefilter('ignore')
        for iteration in range(1, meta['iter'] + 1):
            epoch_ends = iteration % epoch_length == 0 and epochs < meta['epoch']
            epochs += epoch_ends
            for schedule in schedules:
                if (epoch_ends or not schedule.by_epoch) and not hasattr(schedule, 'patience'):
                    schedule.step()


def restore_position(dataloader: DataLoader, place: dict[str, Any]) -> None:
    """Continue the order of images that a checkpoint describes, or raise if this run reads other images or batches."""
    current = position(dataloader)
    for key, value in place.items():
        if key != 'seed' and value != current[key]:
            raise UserError(
                f"train_dataloader: {key} is {value} in the checkpoint, but '{current[key]}' in this run; keep the data "
                'set and total_batch_size / accumulative_counts (the number of processes may change)',
                code='other-batches',
            )
    if place.get('seed') is not None:
        sampler_of(dataloader).seed = place['seed']


def restore_randomness(runner: Runner, states: list[dict]) -> None:
    """Restore the random state of this process, and warn if the run will differ from an uninterrupted run."""
    reasons = []
    if len(states) == get_world_size():
        set_random_state(states[get_rank()])
    else:
        reasons.append(
            f'the checkpoint has the random states of {len(states)} processes, but there are {get_world_size()}, so sums '
            'differ in their last bits, and so do random numbers that a process draws for itself'
        )
    sampler = sampler_of(runner.train_dataloader)
    if not isinstance(sampler, ResumableSampler):
        reasons.append(
            f'{type(sampler).__name__} gives images no seeds, so their views differ; set '
            "train_dataloader.sampler=dict(type='ResumableSampler', shuffle=True)"
        )
    for reason in reasons:
        runner.logger.warning(f'this run will differ from an uninterrupted run: {reason}')


def warn_of_changes(runner: Runner, meta: dict[str, Any]) -> None:
    changes = config_changes(meta.get('settings', {}), settings(runner.cfg))
    version = meta.get('mmairl_version', 'unknown')
    if version != mmairl.__version__:
        changes.insert(0, f'mmairl: {version} -> {mmairl.__version__}')
    if len(changes) > MOST_ROWS:
        changes[MOST_ROWS:] = [f'and {len(changes) - MOST_ROWS} more']
    if changes:
        listed = '\n  '.join(['the config differs from the one in the checkpoint:', *changes])
        runner.logger.warning(listed)


def config_changes(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """List the settings that differ between a checkpoint (`old`) and the current config (`new`)."""
    return [
        f'{key}: {old.get(key)} -> {new.get(key)}'
        for key in {**old, **new}
        # Without a seed in the config, the seed of the checkpoint applies.
        if not _equal(old.get(key), new.get(key)) and (key, new.get(key)) != (SEED, 'None')
    ]


def _equal(before: str | None, now: str | None) -> bool:
    """Return whether two settings are equal, as text or as Python literals, whose keys may be in another order."""
    if before == now or None in (before, now):
        return before == now
    try:
        return ast.literal_eval(before) == ast.literal_eval(now)
    except (ValueError, SyntaxError):
        return False
