"""How a run takes up a checkpoint. What its config changes is applied, or kept as it was, or refused; a table says which.

mmengine restores the rate, decay, momentum and schedules of the checkpoint, whatever the config says now. Here today's config
holds: hyperparameters are set anew, and a schedule that differs is made anew and stepped to where the run is.
"""

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from mmengine.optim import OptimWrapper
from mmengine.optim.scheduler.param_scheduler import _ParamScheduler
from mmengine.runner import Runner

import mmairl
from mmairl.errors import UserError, explained

PROGRESS = ('last_step', '_global_step', '_last_value', 'verbose', 'best', 'num_bad_epochs', 'cooldown_counter')
# How a step is computed, not which.
FORM = ('params', 'param_names', 'fused', 'foreach', 'capturable', 'differentiable')
SHOWN = 20
AGAIN = 'take the config that it was made with, or start from its weights alone by load_from without resume'
Change = tuple[str, Any, Any, str]  # the key, the checkpoint's value, today's, and what is done


def resuming(path: str | Path) -> AbstractContextManager[None]:
    """Turn errors by a checkpoint that lacks a part, or has it in another form than was saved, into one sentence."""
    return explained(f'{path} cannot be resumed from', AGAIN)


def take_up(runner: Runner, checkpoint: dict[str, Any], path: str, today: dict[str, str]) -> None:
    """Put a runner, which has the weights, where the checkpoint was made; `today` are its config's settings."""
    with resuming(path):
        meta, loop, schedules = checkpoint['meta'], runner.train_loop, runner.param_schedulers or []
        require_same_optimizer(meta.get('settings', {}), today)
        if 'message_hub' in checkpoint:
            info = checkpoint['message_hub']['runtime_info']
            require_same_length(schedules, info, runner.max_epochs, runner.max_iters)
            forget_files(info)
            runner.message_hub.load_state_dict(checkpoint['message_hub'])
        loop._epoch, loop._iter = meta['epoch'], meta['iter']  # mmengine has no other way to set these two
        if meta.get('seed') is not None and meta['seed'] != runner._randomness_cfg.get('seed'):
            runner._randomness_cfg.update(seed=meta['seed'])
            runner.set_randomness(**runner._randomness_cfg)
        changes = take_up_optimizer(runner.optim_wrapper, schedules, checkpoint, len(runner.train_dataloader))
    if (before := meta.get('mmairl_version', 'before versions were kept')) != mmairl.__version__:
        changes.insert(0, ('mmairl', before, mmairl.__version__, 'applied'))
    changes += config_changes(meta.get('settings'), today)
    if changes:
        runner.logger.warning(table(changes))


def forget_files(info: dict[str, Any]) -> None:
    """Remove the names of checkpoints that mmengine's hook would delete later: a file must not tell us what to delete.

    The names in `kept_checkpoints` stay. ExactCheckpointHook verifies each of them before it deletes one.
    """
    for key in [key for key in info if str(key).startswith(('best_ckpt', 'keep_ckpt_ids'))]:
        del info[key]


def take_up_optimizer(
    optim_wrapper: OptimWrapper,
    schedules: Sequence[_ParamScheduler],
    checkpoint: dict[str, Any],
    epoch_length: int,
) -> list[Change]:
    """Load the optimizer's state and its schedules; hyperparameters that today's config sets otherwise hold."""
    states, groups = checkpoint.get('param_schedulers') or [], optim_wrapper.optimizer.param_groups
    kept = [_settings(schedule.state_dict()) for schedule in schedules] == [_settings(state) for state in states]
    if not kept:
        _step_to(schedules, checkpoint['meta'], epoch_length)
    today = [dict(group) for group in groups]
    optim_wrapper.load_state_dict(checkpoint['optimizer'])
    not_ours = {*FORM, *(schedule.param_name for schedule in schedules if kept)}
    for group, wanted in zip(optim_wrapper.optimizer.param_groups, today):
        group.update({key: value for key, value in wanted.items() if key not in not_ours})
    if kept:
        for schedule, state in zip(schedules, states):
            schedule.load_state_dict(state)
        return []
    before = checkpoint['optimizer']['param_groups'][0].get('lr')
    return [('schedules: lr at this point', before, today[0].get('lr'), 'made anew for the whole run')]


def _settings(state: dict[str, Any]) -> dict[str, Any]:
    """A schedule without its progress and its functions, which are not saved. Under ZeRO, groups of equal settings are one."""
    plain = {key: value for key, value in state.items() if key not in PROGRESS and not callable(value)}
    return {**plain, 'base_values': set(state['base_values'])}


def _step_to(schedules: Sequence[_ParamScheduler], meta: dict[str, Any], epoch_length: int) -> None:
    """Step fresh schedules as a run does that comes to this iteration: they go from value to value."""
    epochs = 0
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # that no optimizer has stepped before them
        for iteration in range(1, meta['iter'] + 1):
            ends = iteration % epoch_length == 0 and epochs < meta['epoch']
            epochs += ends
            for schedule in schedules:
                if ends or not schedule.by_epoch:
                    schedule.step()


def require_same_optimizer(settings: dict[str, str], today: dict[str, str]) -> None:
    """Refuse the state of another optimizer, which some take for their own; torch refuses one of other parameters."""
    key = 'optim_wrapper.optimizer.type'
    before, now = (held.get(key, '').rpartition('.')[2] for held in (settings, today))
    if before and before != now:
        raise UserError(f"the checkpoint's optimizer is {before} and the config's is {now}: {AGAIN}")


def require_same_length(
    schedules: Sequence[_ParamScheduler], info: dict[str, Any], epochs: int, iterations: int
) -> None:
    """Refuse a run of another length whose schedules end where the old one ended: the last rate would hold to the end."""
    last = {schedule.param_name: number for number, schedule in enumerate(schedules)}
    for number, schedule in ((number, schedules[number]) for number in last.values()):
        unit, now = ('max_epochs', epochs) if schedule.by_epoch else ('max_iters', iterations)
        if schedule.end == info.get(unit) != now:
            raise UserError(
                f'{unit} is {now} now, and schedule {number} of {schedule.param_name} still ends at {schedule.end}, where '
                f'the run ended before: set both lengths (--cfg-options param_scheduler.{number}.end=...), or add '
                "dict(type='ConstantLR', factor=1.0, begin=..., end=...) to keep the last rate"
            )


def config_changes(old: Any, new: dict[str, str]) -> list[Change]:
    """List the differences between the settings in a checkpoint, if it holds any, and today's."""
    changes = []
    for key in dict.fromkeys([*old, *new]) if isinstance(old, dict) else ():
        before, now = old.get(key), new.get(key)
        if before == now or (key == 'randomness.seed' and now == 'None'):
            continue
        changes.append((key, before, now, "the checkpoint's is kept" if key == 'randomness.seed' else 'applied'))
    return changes


def table(changes: Sequence[Change]) -> str:
    """The changes in lines, for the log."""
    rows = [f'  {key}: {before} -> {now} ({done})' for key, before, now, done in changes[:SHOWN]]
    more = [f'  and {len(changes) - SHOWN} more'] if len(changes) > SHOWN else []
    return '\n'.join(['the config differs from the one in the checkpoint:', *rows, *more])
