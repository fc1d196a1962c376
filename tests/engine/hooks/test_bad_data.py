"""Steps with non-finite values are skipped and recorded. Unreadable images are counted over all processes."""

import json
from pathlib import Path

import pytest
import torch
from harness import resume as resuming
from harness.errors import raises_code
from mmengine.hooks import Hook
from PIL import Image

from mmairl.engine import run
from mmairl.registry import HOOKS


@HOOKS.register_module(force=True)
class Remember(Hook):
    """Store the state of model and optimizer after each iteration."""

    priority = 'LOWEST'

    def before_train(self, runner) -> None:
        self.states = []

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        model = {key: value.clone() for key, value in runner.model.state_dict().items()}
        moments = [dict(state) for state in runner.optim_wrapper.optimizer.state.values()]
        self.states.append((model, [moment['momentum_buffer'].clone() for moment in moments]))


class Poisonous(torch.autograd.Function):
    """Return the input unchanged, but make its gradient NaN."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return torch.full_like(gradient, float('nan'))


@HOOKS.register_module(force=True)
class SpoilGradient(Hook):
    """Make the gradients of one iteration NaN while the loss stays finite.

    With `on_gpu`, the optimizer wrapper checks gradients as it does on a GPU.
    """

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
    """Train, and return the runner and the states after each iteration."""
    options = {'default_hooks.checkpoint': None, **options}
    runner = run.train(toy_config(name, width=8, custom_hooks=[*hooks, dict(type='Remember')], **options))
    return runner, next(hook for hook in runner.hooks if isinstance(hook, Remember)).states


def noted(runner) -> dict:
    return json.loads((Path(runner.work_dir) / 'non_finite' / 'iter_2_process_0.json').read_text())


@pytest.mark.parametrize(
    ('name', 'on_gpu', 'fused'),
    [
        ('mocov2plus_r50_200e.py', False, False),
        ('mocov2plus_r50_200e.py', True, True),
        ('byol_lars_r50_200e.py', True, False),
    ],
)
def test_non_finite_gradients_are_skipped_and_counted(toy_config, name, on_gpu, fused):
    options = dict(name=name, steps=4, fast=dict(fused=fused))
    runner, states = trained(toy_config, dict(type='SpoilGradient', iteration=2, on_gpu=on_gpu), **options)
    assert all(value.isfinite().all() for state, moments in states for value in [*state.values(), *moments])
    assert runner.message_hub.get_info('skipped_steps') == 1
    (model, momenta), (next_model, next_momenta) = states[:2]
    assert (resuming.differing(model, next_model, 'model') == []) != on_gpu
    assert (resuming.differing(momenta, next_momenta, 'momenta') == []) == (fused or not on_gpu), (
        'the momenta changed on a CPU or in a fused step, or stayed equal in an unfused step on a GPU'
    )
    assert noted(runner)['iteration'] == 2 and noted(runner)['indices'] == list(range(8, 16))


def test_skipped_step_is_recorded_with_its_images(toy_config):
    """A skipped step changes no weights, statistics, queue or momenta.

    The next step changes the weights, and they stay finite.
    """
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


def test_too_many_skipped_steps_end_the_run(toy_config):
    with raises_code('diverged', '2 steps .* iteration 3'):
        trained(toy_config, dict(type='Spoil', iterations=[1, 3]), steps=5, **{'default_hooks.non_finite.limit': 2})


# Each of two processes reads its images with two data workers.
SCRIPT = """
import copy, sys
from types import SimpleNamespace
import torch.distributed as dist
from torch.utils.data import DataLoader
from mmairl.data.datasets import UnlabelledFolder
from mmairl.data.sampler import ResumableSampler
from mmairl.data.training_images import TrainingImages
from mmairl.errors import UserError
from mmairl.engine.hooks.bad_data import UnreadableHook

dist.init_process_group('gloo')
for folder in sys.argv[1:]:
    data = copy.deepcopy(TrainingImages(UnlabelledFolder(folder)))
    sampler = ResumableSampler(data, seed=0)
    loader = DataLoader(data, batch_size=5, sampler=sampler, num_workers=2)
    batches = iter(loader)
    runner = SimpleNamespace(train_dataloader=loader, iter=0, logger=SimpleNamespace(warning=print))
    hook = UnreadableHook(interval=2)
    try:
        for runner.iter, batch in enumerate(batches):
            hook.after_train_iter(runner)
        hook.after_train(runner)
    except UserError as error:
        print(f'rank {dist.get_rank()}: {error}', flush=True)
    batches._shutdown_workers()  # the garbage collector would wait 5 s for each worker
dist.destroy_process_group()
"""


def folder(root: Path, broken: list[int], count: int = 40) -> Path:
    root.mkdir()
    for number in range(count):
        Image.new('RGB', (4, 4)).save(root / f'{number:02}.png')
    for number in broken:
        (root / f'{number:02}.png').write_bytes(b'')
    return root


def test_unreadable_images_of_workers_share_a_limit(tmp_path, run_processes):
    few = folder(tmp_path / 'few', [1, 2, 7, 31])
    # Each process reads about seven of the fourteen unreadable images. Only the total is above the limit of ten.
    many = folder(tmp_path / 'many', list(range(0, 28, 2)))
    (tmp_path / 'two.py').write_text(SCRIPT)
    output = run_processes(2, tmp_path / 'two.py', few, many)
    lines = ''.join(f'\n  {few}/{number:02}.png (is empty)' for number in (1, 2, 7, 31))
    assert output.count(f'4 unreadable images were skipped; fix or remove them:{lines}\n') == 1
    for rank in (0, 1):
        assert (
            f'rank {rank}: ' in output and 'training images cannot be read, more than the 10 that are allowed' in output
        )
