"""A batch whose loss is not finite leaves nothing behind but a note."""

import json
from pathlib import Path

import pytest
import resuming
import torch
from mmengine.hooks import Hook

from mmairl.data.folders import UnlabelledFolder
from mmairl.engine import launch
from mmairl.errors import UserError
from mmairl.hooks.bad_images import file_names
from mmairl.registry import HOOKS


@HOOKS.register_module(force=True)
class Remember(Hook):
    """The network's and optimizer's state after each iteration."""

    priority = 'LOWEST'

    def before_train(self, runner) -> None:
        self.states = []

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        model = {key: value.clone() for key, value in runner.model.state_dict().items()}
        moments = [dict(state) for state in runner.optim_wrapper.optimizer.state.values()]
        self.states.append((model, [moment['momentum_buffer'].clone() for moment in moments]))


class Poisonous(torch.autograd.Function):
    """Passes a value on and gives a gradient of NaNs back."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return torch.full_like(gradient, float('nan'))


@HOOKS.register_module(force=True)
class SpoilGradient(Hook):
    """A finite loss with gradients that are not, in one iteration; on a CPU, or as a GPU would know of it."""

    def __init__(self, iteration: int, on_gpu: bool) -> None:
        self.iteration, self.on_gpu = iteration, on_gpu

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        runner.optim_wrapper._waits = not self.on_gpu
        last = runner.model.projector
        self.handle = last.register_forward_hook(
            lambda module, inputs, output: Poisonous.apply(output) if runner.iter + 1 == self.iteration else output
        )

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        self.handle.remove()


def trained(toy_config, *hooks: dict, name: str = 'mocov2plus_r50_200e.py', **options) -> tuple:
    """The runner, and the states after each iteration."""
    options = {'default_hooks.checkpoint': None, **options}
    runner = launch.train(toy_config(name, width=8, custom_hooks=[*hooks, dict(type='Remember')], **options))
    return runner, next(hook for hook in runner.hooks if isinstance(hook, Remember)).states


def noted(runner) -> dict:
    return json.loads((Path(runner.work_dir) / 'non_finite' / 'iter_2_process_0.json').read_text())


@pytest.mark.parametrize('name,on_gpu', [('mocov2plus_r50_200e.py', False), ('byol_lars_r50_200e.py', True)])
def test_gradients_that_are_not_finite_leave_finite_weights_and_are_counted_once(toy_config, name, on_gpu):
    runner, states = trained(toy_config, dict(type='SpoilGradient', iteration=2, on_gpu=on_gpu), name=name, steps=4)
    assert all(value.isfinite().all() for state, moments in states for value in [*state.values(), *moments])
    assert runner.message_hub.get_info('skipped_steps') == 1
    assert (resuming.differing(states[0][0], states[1][0], 'model') == []) != on_gpu
    assert noted(runner)['iteration'] == 2 and noted(runner)['indices'] == list(range(8, 16))


def test_the_step_is_not_taken_at_all_and_written_down_for_a_replay(toy_config):
    """Weights, statistics of both networks, queue, momentum buffers: as after the step before, and finite at the end."""
    runner, states = trained(toy_config, dict(type='Spoil', iterations=[2]))
    assert resuming.differing(states[0], states[1], 'state') == []
    assert resuming.differing(states[1][0], states[2][0], 'model') != []
    assert all(value.isfinite().all() for value in states[2][0].values())
    assert runner.message_hub.get_info('skipped_steps') == 1
    assert noted(runner)['iteration'] == 2 and noted(runner)['indices'] == list(range(8, 16))
    assert noted(runner)['files'] == []


def test_under_accumulation_the_whole_step_is_dropped(toy_config):
    options = {'optim_wrapper.accumulative_counts': 2}
    _, states = trained(toy_config, dict(type='Spoil', iterations=[3]), steps=6, batch=16, **options)
    assert resuming.differing(states[1][0], states[3][0], 'model') == []
    assert resuming.differing(states[3][0], states[5][0], 'model') != []


def test_too_many_end_the_run_with_one_sentence(toy_config):
    with pytest.raises(UserError, match='2 steps had a loss or gradients that are not finite, the last at iteration 3'):
        trained(toy_config, dict(type='Spoil', iterations=[1, 3]), steps=5, **{'default_hooks.non_finite.limit': 2})


def test_finite_runs_are_the_same_with_and_without_the_hook(toy_config):
    _, with_it = trained(toy_config)
    _, without = trained(toy_config, **{'default_hooks.non_finite': None})
    assert resuming.differing(with_it[-1][0], without[-1][0], 'model') == []


def test_the_files_of_a_part_of_a_part_are_named(tmp_path):
    for name in 'abcd':
        (tmp_path / f'{name}.png').touch()
    part = PartOf(PartOf(UnlabelledFolder(tmp_path), [1, 2, 3]), [2, 0])
    assert [Path(name).name for name in file_names(part, [0, 1])] == ['d.png', 'b.png']


class PartOf:
    def __init__(self, dataset, indices) -> None:
        self.dataset, self.indices = dataset, torch.tensor(indices)
