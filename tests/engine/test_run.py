"""How runs start: seeds, batch layout, locks, and one clear error for each mistake."""

import errno
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from harness.errors import raises_code
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import BaseModel

from mmairl.config import load_config
from mmairl.engine import run
from mmairl.engine.checkpoint import load_checkpoint
from mmairl.engine.runner import Runner
from mmairl.errors import UserError, one_sentence_errors
from mmairl.registry import HOOKS, MODELS


def weights(runner) -> dict[str, torch.Tensor]:
    return runner.model.state_dict()


@pytest.mark.parametrize('explicit, expected', [(None, 1), ('4', 4)])
def test_explicit_number_of_threads_wins(explicit, expected, monkeypatch):
    counts = [4]
    monkeypatch.setattr(run, 'cores', lambda: 1)
    monkeypatch.setattr(torch, 'get_num_threads', lambda: counts[-1])
    monkeypatch.setattr(torch, 'set_num_threads', counts.append)
    monkeypatch.delenv('OMP_NUM_THREADS', raising=False)
    if explicit:
        monkeypatch.setenv('OMP_NUM_THREADS', explicit)
    run.register()
    assert counts[-1] == expected


def test_seed_repeats_a_run_bit_for_bit(toy_config, tmp_path):
    folders = [str(tmp_path / name) for name in 'ab']
    # Without a name in the config, mmairl's runner must give the runs different names, even if both
    # start in the same second.
    toy = dict(width=8, experiment_name=None)
    first, again = (weights(run.train(toy_config(work_dir=folder, **toy))) for folder in folders)
    assert all(list(Path(folder).rglob('vis_data/config.py')) for folder in folders)
    runner = run.train(toy_config(width=8, experiment_name='mine', **{'randomness.seed': 4}))
    assert re.fullmatch(r'mine_\d{8}_\d{6}', runner.experiment_name), 'the name from the config was not kept'
    other = weights(runner)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first['backbone.conv1.weight'], other['backbone.conv1.weight'])


@pytest.mark.parametrize(
    'total,batch_size,processes,steps,share',
    [(1024, None, 4, 2, 128), (1024, 32, 2, 1, 32)],
)
def test_total_batch_is_divided_among_processes(total, batch_size, processes, steps, share):
    loader = {} if batch_size is None else dict(batch_size=batch_size)
    cfg = Config(dict(total_batch_size=total, train_dataloader=loader, optim_wrapper=dict(accumulative_counts=steps)))
    run.share_batch(cfg, processes)
    assert cfg.train_dataloader.batch_size == share and cfg.total_batch_size == share * processes * steps
    with raises_code('indivisible-batch'):
        run.share_batch(Config(dict(total_batch_size=10, train_dataloader={}, optim_wrapper={})), 3)


@HOOKS.register_module(force=True)
class KillWorker(Hook):
    """Kill a data worker in the middle of a step, as the system does when memory runs out.

    Then continue the step for a minute.
    """

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        worker = multiprocessing.active_children()[0]
        os.kill(worker.pid, signal.SIGKILL)
        for _ in range(6000):
            time.sleep(0.01)


def test_worker_killed_during_a_step_is_one_error(toy_config):
    cfg = toy_config(steps=4, width=4, custom_hooks=[dict(type='KillWorker')])
    cfg.train_dataloader.num_workers = 1
    with raises_code('data-workers-failed', 'is killed by signal: Killed'):
        run.train(cfg)


MISTAKES = {
    'queue smaller than the batch': (dict(queue=4), 'queue-too-short'),
    'batch of one with batch norm': (dict(batch=1), 'batch-of-one'),
    'fewer images than a batch': ({'train_dataloader.dataset.count': 5}, 'no-batch'),
    'wrong value': ({'model.head.temperature': 0.0}, 'bad-temperature'),
    'missing checkpoint': (dict(load_from='gone.pth', resume=True), 'no-checkpoint'),
    'teacher without a hook': ({'default_hooks.momentum': None}, 'no-momentum-hook'),
    'queue without a hook': (
        {'default_hooks.momentum': None, 'model.target': 'stop_gradient'},
        'no-queue-hook',
    ),
    'rate scaled without a base': ({'auto_scale_lr': dict(enable=True, _delete_=True)}, 'no-base-batch-size'),
    'weights alone': (dict(load_from='BARE', resume=True), 'not-a-training-checkpoint'),
    'missing data set': (
        {'train_dataloader.dataset': dict(type='ImageFolder', root='imagenet', views=[[], []], _delete_=True)},
        'no-image-folder',
    ),
}


@pytest.mark.parametrize('mistake', MISTAKES)
def test_mistake_raises_before_the_first_step(toy_config, tmp_path, mistake):
    options, code = MISTAKES[mistake]
    torch.save(dict(state_dict={}), tmp_path / 'bare.pth')
    cfg = toy_config(width=4, **options)
    cfg.load_from = str(tmp_path / 'bare.pth') if cfg.load_from == 'BARE' else cfg.load_from
    with raises_code(code) as caught:
        run.train(cfg)
    assert '\n' not in str(caught.value)
    assert not list(Path(cfg.work_dir).rglob('*.pth'))


def test_resume_with_another_architecture_raises(toy_config):
    run.train(toy_config(steps=1, width=4))
    narrow = {
        'model.projector.out_channels': 8,
        'model.predictor.in_channels': 8,
        'model.predictor.out_channels': 8,
    }
    with raises_code('other-network', match=r'projector.mlp.3.weight has shape \(16, 64\), not \(8, 64\)'):
        run.train(toy_config(resume=True, width=4, **narrow))


@pytest.mark.parametrize('accumulated, rate', [(1, 0.25), (4, 1.0)])
def test_rate_is_scaled_by_all_images_of_a_step(toy_config, accumulated, rate):
    """The run has 4 images per iteration, and its learning rate of 1 is meant for 16 images per step."""
    cfg = toy_config(steps=accumulated, width=4, batch=4 * accumulated)
    cfg.optim_wrapper.update(accumulative_counts=accumulated, optimizer=dict(type='SGD', lr=1.0))
    cfg.param_scheduler, cfg.auto_scale_lr = None, dict(base_batch_size=16, enable=True)
    assert run.train(cfg).optim_wrapper.optimizer.param_groups[0]['lr'] == rate


@HOOKS.register_module(force=True)
class RemoveWorkDir(Hook):
    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        shutil.rmtree(runner.work_dir)


def test_work_dir_removed_during_a_run_raises(toy_config):
    cfg = toy_config(steps=2, width=4, custom_hooks=[dict(type='RemoveWorkDir')])
    cfg.default_hooks.logger.interval = 1
    with raises_code('cannot-write'):
        run.train(cfg)


@MODELS.register_module(force=True)
class MaskedModel(BaseModel):
    """A model that takes a single tensor, like mmpretrain's MAE."""

    def __init__(self, **_: object) -> None:
        super().__init__()
        self.backbone = torch.nn.Conv2d(3, 4, 3)

    def forward(self, inputs, data_samples=None, mode='loss'):
        return self.loss(inputs)

    def loss(self, inputs: torch.Tensor) -> dict:
        return dict(loss=self.backbone(inputs).mean())


def test_memory_is_pinned_for_a_gpu_only(toy_config):
    cfg = toy_config(**{'train_dataloader.pin_memory': True})
    run.complete_config(cfg, 'none')
    runner = run.build_runner(cfg)
    assert runner.train_dataloader.pin_memory == torch.cuda.is_available()


def test_model_for_one_tensor_raises_with_views(toy_config):
    cfg = toy_config(steps=1, width=4)
    cfg.model = dict(type='MaskedModel')
    cfg.train_dataloader.dataset = dict(type='Shapes', split='train', count=8, size=32, views=[[], []])
    with raises_code('takes-one-tensor', match='MaskedModel'):
        run.train(cfg)


class ForeignQueue(MaskedModel):
    """A model with a queue and a teacher that are not mmairl's, like those of mmpretrain's MoCo."""

    def __init__(self, **_: object) -> None:
        super().__init__()
        self.register_buffer('queue', torch.zeros(4, 8))
        self.teacher = torch.nn.Conv2d(3, 4, 3)

    def loss(self, inputs: list[torch.Tensor]) -> dict:
        return dict(loss=self.backbone(inputs[0]).mean())


def test_model_with_a_foreign_queue_trains(toy_config):
    MODELS.register_module(module=ForeignQueue, force=True)
    cfg = toy_config(steps=2, width=4)
    cfg.model = dict(type='ForeignQueue')
    assert run.train(cfg).iter == 2


def test_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, caplog):
    def lockf(*_):
        raise OSError(errno.ENOLCK, 'No locks available')

    monkeypatch.setattr(run.fcntl, 'lockf', lockf)
    with run.locked(str(tmp_path)):
        assert (tmp_path / '.lock').is_file()


def test_backend_args_write_a_resumable_checkpoint(toy_config):
    """With `backend_args`, mmengine writes the file, for example to an object store. In this test, it writes to a folder."""
    cfg = toy_config(steps=2, width=4)
    cfg.default_hooks.checkpoint.update(out_dir='s3://bucket/runs')
    with raises_code('not-a-folder'):
        run.train(cfg)
    cfg = toy_config(steps=2, width=4)
    cfg.default_hooks.checkpoint.update(backend_args=dict(backend='local'), interval=1)
    run.train(cfg)
    saved = load_checkpoint(Path(cfg.work_dir) / 'iter_2.pth')
    assert len(saved['random_states']) == 1 and saved['place']['images_per_step'] == cfg.total_batch_size


def test_command_prints_the_error_and_exits_2(capsys, monkeypatch):
    def main(message: str) -> None:
        raise UserError(message)

    from_worker = (
        'Caught UserError in DataLoader worker process 0.\nOriginal Traceback:\nmmairl.errors.UserError: fix it'
    )
    for message in ('fix it', from_worker):
        with pytest.raises(SystemExit) as exit_error:
            one_sentence_errors(lambda message=message: main(message))()
        assert exit_error.value.code == 2 and capsys.readouterr().err == 'error: fix it\n'
    with pytest.raises(SystemExit):
        one_sentence_errors(lambda: main('a\x1b[2J\nerror: forged.jpg is empty'))()
    assert capsys.readouterr().err == 'error: a\\x1b[2J\\nerror: forged.jpg is empty\n'
    monkeypatch.setenv('MMAIRL_TRACEBACK', '1')
    with pytest.raises(UserError):
        one_sentence_errors(lambda: main('fix it'))()


def test_run_shorter_than_its_warm_up_trains(toy_config):
    """A config of 200 epochs may be tried for one epoch. mmengine rejects a schedule that begins after the end of the run."""
    cfg = toy_config(steps=2, width=4)
    cfg.train_cfg = dict(by_epoch=True, max_epochs=1)
    cfg.param_scheduler = [
        dict(type='WarmUpLR', start=1e-6, end=10, convert_to_iter_based=True),
        dict(type='CosineAnnealingLR', eta_min=0.0, begin=10, convert_to_iter_based=True),
    ]
    cfg.default_hooks.checkpoint.by_epoch = True
    cfg.default_hooks.health = None
    runner = run.train(cfg)
    assert runner.iter == 2 and 'HealthHook' not in {type(hook).__name__ for hook in runner.hooks}


HOLDS = """
import sys, time
from mmairl.engine.run import locked
with locked(sys.argv[1]):
    print('held', flush=True)
    time.sleep(60)
"""


def test_second_run_in_a_work_dir_raises(tmp_path):
    held = subprocess.Popen([sys.executable, '-c', HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert any(line == 'held\n' for line in held.stdout)
        sentence = f'process {held.pid} on {socket.gethostname()}'
        with raises_code('work-dir-in-use', re.escape(sentence)), run.locked(str(tmp_path)):
            pass
    finally:
        held.kill()
        held.wait()
    with run.locked(str(tmp_path)):
        assert str(os.getpid()) in (tmp_path / '.lock').read_text(), (
            'the lock file does not contain the id of this process'
        )
    (tmp_path / '.lock').rename(tmp_path / 'own')
    (tmp_path / '.lock').symlink_to(tmp_path / 'own')
    with raises_code('cannot-write', 'Too many levels'), run.locked(str(tmp_path)):
        pass


def test_dumped_config_replaces_a_link(tmp_path, toy_config):
    (tmp_path / 'own.py').write_text('own')
    cfg = toy_config(steps=1, width=4, work_dir=str(tmp_path / 'run'))
    for name, is_kept in (('a.py', False), ('a.yaml', False), ('b.py', True)):
        object.__setattr__(cfg, '_filename', str(tmp_path / ('run' if is_kept else '') / name))
        (tmp_path / 'run').mkdir(exist_ok=True)
        path = tmp_path / 'run' / name
        path.symlink_to(tmp_path / 'own.py')
        Runner.from_cfg(cfg)
        assert path.is_symlink() == is_kept and (tmp_path / 'own.py').read_text() == 'own'
        assert is_kept or load_config(path).model == cfg.model


FIRST_STEP = """
import sys
from pathlib import Path
from mmengine.hooks import Hook
from mmairl.config import load_config
from mmairl.engine.run import train
from mmairl.registry import HOOKS

@HOOKS.register_module()
class Count(Hook):
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        Path(sys.argv[1], 'imported').write_text(' '.join(name for name in sys.modules if name.startswith('mmairl.')))
        Path(sys.argv[1], 'others').write_text(' '.join(sys.modules))
        raise SystemExit

options = {'train_dataloader.dataset.count': 64, 'total_batch_size': 32, 'model.queue.length': 64, 'work_dir': sys.argv[1]}
train(load_config('mmairl::demo/mocov2plus_shapes.py', {**options, 'custom_hooks': [dict(type='Count')]}))
"""


def test_run_imports_only_what_its_config_names(tmp_path):
    command = [sys.executable, '-W', 'ignore', '-c', FIRST_STEP, str(tmp_path / 'run')]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert (tmp_path / 'run/imported').is_file(), process.stderr[-3000:]
    ours = (tmp_path / 'run/imported').read_text().split()
    rooms = [name.split('.')[1] for name in ours]
    assert not {'evaluation', 'transfer', 'study', 'report', 'sharding'} & set(rooms), process.stdout + process.stderr
    assert 'mmairl.evaluation.online' not in ours and 'mmairl.data.public' not in ours
    heavy = {'scipy', 'sklearn', 'pandas', 'jinja2', 'safetensors', 'mmdet.models', 'matplotlib.pyplot'}
    assert not heavy & set((tmp_path / 'run/others').read_text().split())
