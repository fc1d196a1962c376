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
from mmairl.hooks.nonfinite import file_names
from mmairl.registry import HOOKS


@HOOKS.register_module(force=True)
class Spoil(Hook):
    """Puts a NaN into the batches of some iterations, in one process."""

    def __init__(self, iterations: list[int]) -> None:
        self.iterations = iterations

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter + 1 in self.iterations:
            data_batch['inputs'][0][0, 0, 0, 0] = float('nan')


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


@pytest.mark.parametrize('name', ['mocov2plus_r50_200e.py', 'byol_lars_r50_200e.py'])
@pytest.mark.parametrize('on_gpu', [False, True])
def test_gradients_that_are_not_finite_leave_finite_weights_and_are_counted_once(toy_config, name, on_gpu):
    cfg = toy_config(name, steps=4)
    cfg.custom_hooks = [dict(type='SpoilGradient', iteration=2, on_gpu=on_gpu), dict(type='Remember')]
    runner = launch.train(cfg)
    states = next(hook for hook in runner.hooks if isinstance(hook, Remember)).states
    assert all(value.isfinite().all() for state, moments in states for value in [*state.values(), *moments])
    assert runner.message_hub.get_info('skipped_steps') == 1
    assert (resuming.differing(states[0][0], states[1][0], 'model') == []) != on_gpu
    found = json.loads((Path(runner.work_dir) / 'non_finite' / 'iter_2_process_0.json').read_text())
    assert found['iteration'] == 2 and found['indices'] == list(range(8, 16))


def run(toy_config, name: str = 'mocov2plus_r50_200e.py', spoilt: tuple[int, ...] = (), **options) -> tuple:
    cfg = toy_config(name, custom_hooks=[dict(type='Spoil', iterations=list(spoilt)), dict(type='Remember')], **options)
    runner = launch.train(cfg)
    return runner, next(hook for hook in runner.hooks if isinstance(hook, Remember)).states


@pytest.mark.parametrize('name', ['mocov2plus_r50_200e.py', 'byol_lars_r50_200e.py'])
def test_the_step_is_not_taken_at_all(toy_config, name):
    """Weights, statistics of both networks, queue, momentum buffers: as after the step before, and finite at the end."""
    runner, states = run(toy_config, name, spoilt=(3,), steps=4)
    (before, moments_before), (after, moments_after) = states[1], states[2]
    assert resuming.differing(before, after, 'model') == []
    assert resuming.differing(moments_before, moments_after, 'momentum') == []
    assert resuming.differing(after, states[3][0], 'model') != []
    assert all(value.isfinite().all() for value in states[3][0].values())
    assert runner.message_hub.get_info('skipped_steps') == 1


def test_it_is_written_down_for_a_replay(toy_config):
    runner, _ = run(toy_config, spoilt=(2,), steps=3)
    found = json.loads((Path(runner.work_dir) / 'non_finite' / 'iter_2_process_0.json').read_text())
    assert found['iteration'] == 2 and found['indices'] == list(range(8, 16)) and found['files'] == []


def test_under_accumulation_the_whole_step_is_dropped(toy_config):
    options = {'optim_wrapper.accumulative_counts': 2}
    _, states = run(toy_config, spoilt=(3,), steps=6, batch=16, **options)
    assert resuming.differing(states[1][0], states[3][0], 'model') == []
    assert resuming.differing(states[3][0], states[5][0], 'model') != []


def test_too_many_end_the_run_with_one_sentence(toy_config):
    with pytest.raises(UserError, match='2 steps had a loss or gradients that are not finite, the last at iteration 3'):
        run(toy_config, spoilt=(1, 3), steps=5, **{'default_hooks.non_finite.limit': 2})


def test_finite_runs_are_the_same_with_and_without_the_hook(toy_config):
    _, with_it = run(toy_config)
    cfg = toy_config(custom_hooks=[dict(type='Remember')])
    cfg.default_hooks.pop('non_finite')
    runner = launch.train(cfg)
    without = next(hook for hook in runner.hooks if isinstance(hook, Remember)).states
    assert resuming.differing(with_it[-1][0], without[-1][0], 'model') == []


def test_the_files_of_a_part_of_a_part_are_named(tmp_path):
    from PIL import Image

    for name in 'abcd':
        Image.new('RGB', (4, 4)).save(tmp_path / f'{name}.png')

    class Part:
        def __init__(self, dataset, indices) -> None:
            self.dataset, self.indices = dataset, torch.tensor(indices)

    folder = UnlabelledFolder(tmp_path)
    part = Part(Part(folder, [1, 2, 3]), [2, 0])
    assert [Path(name).name for name in file_names(part, [0, 1])] == ['d.png', 'b.png']


def test_one_process_with_a_bad_batch_stops_the_step_of_both(tmp_path, run_processes):
    script = tmp_path / 'script.py'
    script.write_text(
        'import sys, torch, toy\n'
        'from mmengine.dist import get_rank\n'
        'from mmairl.engine import launch\n'
        'from mmairl.engine.distributed import start_processes\n'
        'from mmairl.errors import stop_processes\n'
        'sys.path.insert(0, sys.argv[1])\n'
        'from hooks.test_nonfinite import Spoil\n'
        'launch.register(); start_processes("pytorch")\n'
        'cfg = toy.config("mocov2plus_r50_200e.py", sys.argv[2], steps=3)\n'
        'cfg.custom_hooks = [dict(type="Spoil", iterations=[2] if get_rank() else [])]\n'
        'runner = launch.train(cfg, "pytorch")\n'
        'assert runner.message_hub.get_info("skipped_steps") == 1\n'
        'assert all(v.isfinite().all() for v in runner.model.module.state_dict().values())\n'
        'stop_processes()\n'
    )
    run_processes(2, script, Path(__file__).parents[1], tmp_path / 'run')
    assert len(list((tmp_path / 'run' / 'non_finite').glob('*.json'))) == 2
