"""Restore a run from a checkpoint.

mmengine restores the learning rate, weight decay, momentum and schedules of the checkpoint and ignores changes of the config.
Here, the run continues with the hyperparameters of the current config. If a schedule has changed, all schedules are rebuilt and
stepped to the current iteration. The log lists every changed setting and whether the change is applied. A change with which the
run cannot continue, such as another batch size, raises an error.
"""

import ast
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from mmengine.dist import get_rank, get_world_size
from mmengine.optim import OptimWrapper
from mmengine.optim.scheduler.param_scheduler import _ParamScheduler
from mmengine.runner import Runner
from torch.utils.data import DataLoader

import mmairl
from mmairl.engine.batches import images_in_epoch, images_per_step, sampler_of
from mmairl.errors import UserError, explained
from mmairl.randomness import set_random_state

# The keys of a schedule's state that change during a run.
PROGRESS = (
    'last_step',
    '_global_step',
    '_last_value',
    'verbose',
    'best',
    'num_bad_epochs',
    'cooldown_counter',
)
# Keys of a parameter group that do not affect the values that the optimizer computes.
FORM = {'params', 'param_names', 'fused', 'foreach', 'capturable', 'differentiable'}
# The message hub holds names of checkpoint files under keys that start with these words. mmengine's CheckpointHook and
# earlier versions of ExactCheckpointHook store these names.
FILE_NAMES = ('best_ckpt', 'keep_ckpt_ids', 'kept_checkpoints', 'outdated_checkpoints')
MOST_ROWS = 20
SEED = 'randomness.seed'
ADVICE = 'use the config of the checkpoint, or load only its weights (load_from without resume)'
# A changed setting: its key, the checkpoint's value, the current value, and what the resume does with the change.
Change = tuple[str, Any, Any, str]


def resuming(path: str | Path) -> AbstractContextManager[None]:
    """Return a context in which a missing or malformed part of a checkpoint raises a UserError that names the file."""
    return explained(f'{path}: the run cannot be resumed', ADVICE, code='malformed-checkpoint')


def restore_run(
    runner: Runner, checkpoint: dict[str, Any], path: str, current: dict[str, str]
) -> None:
    """Restore counters, seed, logged values, optimizer and schedules. The runner has already loaded the weights.

    ExactCheckpointHook restores the random states and the position in the order of the images.

    Args:
        runner: The runner to restore.
        checkpoint: The content of the checkpoint.
        path: The path of the checkpoint, for error messages.
        current: The settings of the current config, as text by dotted key.
    """
    with resuming(path):
        meta = checkpoint['meta']
        if checkpoint['optimizer'] is not None:
            require_same_optimizer(meta.get('settings', {}), current)
        if 'message_hub' in checkpoint:
            _restore_message_hub(runner, checkpoint['message_hub'])
        # mmengine offers no public setter for the position of a loop.
        runner.train_loop._epoch = meta['epoch']
        runner.train_loop._iter = meta['iter']
        _restore_seed(runner, meta.get('seed'))
        changes = restore_optimizer(
            runner.optim_wrapper,
            runner.param_schedulers or [],
            checkpoint,
            len(runner.train_dataloader),
        )
    version = meta.get('mmairl_version', 'unknown')
    if version != mmairl.__version__:
        changes.insert(0, ('mmairl', version, mmairl.__version__, 'applied'))
    changes += config_changes(meta.get('settings'), current)
    if changes:
        runner.logger.warning(format_changes(changes))


def _restore_message_hub(runner: Runner, state: dict[str, Any]) -> None:
    info = state['runtime_info']
    require_same_length(runner.param_schedulers or [], info, runner.max_epochs, runner.max_iters)
    drop_file_names(info)
    runner.message_hub.load_state_dict(state)


def _restore_seed(runner: Runner, seed: int | None) -> None:
    if seed is not None and seed != runner._randomness_cfg.get('seed'):
        runner._randomness_cfg.update(seed=seed)
        runner.set_randomness(**runner._randomness_cfg)


def drop_file_names(info: dict[str, Any]) -> None:
    """Remove file names from the message hub of a checkpoint, because hooks would later delete these files.

    A checkpoint may come from an untrusted source, and loading it must not delete files.
    """
    for key in list(info):
        if str(key).startswith(FILE_NAMES):
            del info[key]


def restore_optimizer(
    optim_wrapper: OptimWrapper,
    schedules: Sequence[_ParamScheduler],
    checkpoint: dict[str, Any],
    epoch_length: int,
) -> list[Change]:
    """Load the state of the optimizer and its schedules, but keep the hyperparameters of the current config.

    If the checkpoint has None instead of an optimizer state (see `fork.py`), the optimizer keeps its initial state. Return
    the changes that the log should list.
    """
    states = checkpoint.get('param_schedulers') or []
    reset = checkpoint['optimizer'] is None
    before = [_settings(state) for state in states]
    same = not reset and [_settings(schedule.state_dict()) for schedule in schedules] == before
    if not same:
        _step_to(schedules, checkpoint['meta'], epoch_length)
    if reset:
        return [('state of the optimizer', "the checkpoint's", 'initial', 'reset')]
    current = [dict(group) for group in optim_wrapper.optimizer.param_groups]
    optim_wrapper.load_state_dict(checkpoint['optimizer'])
    for state in optim_wrapper.optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, str):
                raise TypeError(f'{key} in the state of the optimizer is text')
    restored = FORM | {schedule.param_name for schedule in schedules if same}
    for group, settings in zip(optim_wrapper.optimizer.param_groups, current):
        group.update({key: value for key, value in settings.items() if key not in restored})
    if same:
        for schedule, state in zip(schedules, states):
            schedule.load_state_dict(state)
        return []
    rate = checkpoint['optimizer']['param_groups'][0].get('lr')
    return [
        (
            'schedules: lr at the current iteration',
            rate,
            current[0].get('lr'),
            'rebuilt for the whole run',
        )
    ]


def _settings(state: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a schedule, given its state.

    The schedule's progress is left out, and so are functions, because a checkpoint does not hold them. The base values of the
    parameter groups become a set, because earlier versions merged groups with equal settings under ZeRO.
    """
    settings = {
        key: value for key, value in state.items() if key not in PROGRESS and not callable(value)
    }
    settings['base_values'] = set(state['base_values'])
    return settings


def _step_to(schedules: Sequence[_ParamScheduler], meta: dict[str, Any], epoch_length: int) -> None:
    """Step new schedules to the iteration in `meta`.

    The steps are taken one by one, because each value of a schedule depends on its previous value.
    """
    epochs = 0
    with warnings.catch_warnings():
        # Torch would warn that the schedule steps before the optimizer.
        warnings.simplefilter('ignore')
        for iteration in range(1, meta['iter'] + 1):
            epoch_ends = iteration % epoch_length == 0 and epochs < meta['epoch']
            epochs += epoch_ends
            for schedule in schedules:
                if epoch_ends or not schedule.by_epoch:
                    schedule.step()


def require_same_optimizer(settings: dict[str, str], current: dict[str, str]) -> None:
    """Raise if the class of the optimizer has changed.

    The check is needed because some optimizers load the state of another class without an error.
    """
    key = 'optim_wrapper.optimizer.type'
    before = settings.get(key, '').rpartition('.')[2]
    now = current.get(key, '').rpartition('.')[2]
    if before and before != now:
        raise UserError(
            f"optim_wrapper.optimizer.type: '{now}' cannot load the state of '{before}' in the checkpoint; {ADVICE}",
            code='other-optimizer',
        )


def require_same_length(
    schedules: Sequence[_ParamScheduler], info: dict[str, Any], epochs: int, iterations: int
) -> None:
    """Raise if the length of the run has changed but a schedule still ends at the old length.

    In a longer run, the last value of that schedule would apply to all later steps.
    """
    last = {schedule.param_name: number for number, schedule in enumerate(schedules)}
    for number in last.values():
        schedule = schedules[number]
        unit, length = ('max_epochs', epochs) if schedule.by_epoch else ('max_iters', iterations)
        if schedule.end == info.get(unit) != length:
            raise UserError(
                f'param_scheduler.{number}.end: the run now has {unit}={length}, but the schedule of {schedule.param_name} '
                f"still ends at the old length ('{schedule.end}'); change its end, too (--cfg-options "
                f"param_scheduler.{number}.end=...), or add dict(type='ConstantLR', factor=1.0, begin=..., end=...) "
                'to keep its last value',
                code='other-length',
            )


def position(dataloader: DataLoader) -> dict[str, Any]:
    """Return the values that determine the order of the images. A checkpoint stores them as 'place'."""
    place = dict(
        images_per_step=images_per_step(dataloader),
        images=images_in_epoch(dataloader),
        steps=len(dataloader),
    )
    sampler = sampler_of(dataloader)
    if hasattr(sampler, 'seed'):
        place['seed'] = sampler.seed
    return place


def restore_position(dataloader: DataLoader, place: dict[str, Any]) -> None:
    """Continue the order of images that a checkpoint describes, or raise if this run reads other images or batches.

    `place` is the result of `position` in the run that wrote the checkpoint.
    """
    images = images_per_step(dataloader)
    if images != place['images_per_step']:
        raise UserError(
            f'total_batch_size: the run of the checkpoint has {place["images_per_step"]} images per iteration, but this run '
            f"has '{images}'; set total_batch_size so that total_batch_size / accumulative_counts is "
            f'{place["images_per_step"]} (the number of processes may change)',
            code='other-batch-size',
        )
    images = images_in_epoch(dataloader)
    if place.get('images', images) != images:
        raise UserError(
            f'train_dataloader.dataset: the run of the checkpoint has {place["images"]} images per epoch, but this run has '
            f"'{images}'; use the same images, or load only the weights (load_from without resume)",
            code='other-images',
        )
    steps = len(dataloader)
    if place.get('steps', steps) != steps:
        raise UserError(
            f'train_dataloader: the run of the checkpoint has {place["steps"]} iterations per epoch, but this run has '
            f"'{steps}'; keep drop_last and the number of processes of that run",
            code='other-epoch-length',
        )
    sampler = sampler_of(dataloader)
    if 'seed' in place and hasattr(sampler, 'seed'):
        sampler.seed = place['seed']


def restore_randomness(runner: Runner, states: list[dict]) -> None:
    """Restore the random state of this process, or warn if the number of processes changed."""
    if len(states) == get_world_size():
        set_random_state(states[get_rank()])
        return
    runner.logger.warning(
        f'the number of processes was {len(states)} and is now {get_world_size()}: batches and views stay the same, but the '
        'last bits of sums differ, and so do random numbers that a process draws for itself (ShuffleBN, views made on the '
        'device)'
    )


def config_changes(old: Any, new: dict[str, str]) -> list[Change]:
    """List the settings that differ between a checkpoint (`old`) and the current config (`new`).

    The list is empty if the checkpoint holds no settings, as in early versions.
    """
    changes = []
    for key in {**old, **new} if isinstance(old, dict) else ():
        before = old.get(key)
        now = new.get(key)
        if _equal(before, now) or (key == SEED and now == 'None'):
            continue
        action = "the checkpoint's value is kept" if key == SEED else 'applied'
        changes.append((key, before, now, action))
    return changes


def _equal(before: str | None, now: str | None) -> bool:
    """Return whether two settings are equal, as text or as Python literals.

    Equal dictionaries may differ as text, because their keys may be in another order.
    """
    if before == now or None in (before, now):
        return before == now
    try:
        return ast.literal_eval(before) == ast.literal_eval(now)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return False


def format_changes(changes: Sequence[Change]) -> str:
    lines = ['the config differs from the one in the checkpoint:']
    for key, before, now, action in changes[:MOST_ROWS]:
        lines.append(f'  {key}: {before} -> {now} ({action})')
    if len(changes) > MOST_ROWS:
        lines.append(f'  and {len(changes) - MOST_ROWS} more')
    return '\n'.join(lines)
