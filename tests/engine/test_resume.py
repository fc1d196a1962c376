"""An interrupted run equals an uninterrupted run bit for bit, and a resumed run uses the current config."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness import resume as script
from harness import toy
from harness.compare import different_runs
from harness.errors import raises_code
from mmengine.hooks import Hook

from mmairl.config import config_text
from mmairl.engine import run
from mmairl.engine.runner import Runner
from mmairl.errors import UserError
from mmairl.registry import HOOKS
from mmairl.signals import AGAIN, Stopped

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize('case', script.CASES)
def test_resume_inside_an_epoch_is_exact(tmp_path, case):
    """The runs use data workers, views made on the device, ShuffleBN or gradient accumulation."""
    whole = script.run(script.config(case, str(tmp_path / 'whole')))
    script.run(script.config(case, str(tmp_path / 'left'), leave_at=7))
    resumed = script.run(script.config(case, str(tmp_path / 'left'), resume=True))
    assert different_runs(whole, resumed) == []


def test_resume_with_other_numbers_of_workers_is_exact(tmp_path):
    whole = script.run(script.config('workers', str(tmp_path / 'whole'), **script.SHORT))
    script.run(script.config('workers', str(tmp_path / 'left'), leave_at=4, **script.SHORT))
    cfg = script.config('workers', str(tmp_path / 'left'), resume=True, **script.SHORT)
    cfg.train_dataloader.update(num_workers=0, persistent_workers=False)
    assert different_runs(whole, script.run(cfg)) == []


def test_resume_after_a_signal_is_exact(tmp_path):
    whole = script.run(script.config('workers', str(tmp_path / 'whole'), **script.SHORT))
    cfg = script.config('workers', str(tmp_path / 'stopped'), **script.SHORT)
    cfg.custom_hooks.append(dict(type='SignalAt', iteration=2, number=signal.SIGTERM))
    with pytest.raises(Stopped, match='iter_2.pth; continue with'):
        run.train(cfg)
    resumed = script.run(
        script.config('workers', str(tmp_path / 'stopped'), resume=True, **script.SHORT)
    )
    assert different_runs(whole, resumed) == []


@HOOKS.register_module(force=True)
class FillDisk(Hook):
    """Limit the size of files, so that the next checkpoint fails as on a full disk."""

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter == 4:
            import resource

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, -1))


def test_resume_after_a_full_disk_is_exact(tmp_path):
    import resource

    whole = script.run(script.config('no_queue', str(tmp_path / 'whole'), **script.SHORT))
    cfg = script.config('no_queue', str(tmp_path / 'full'), **script.SHORT)
    cfg.custom_hooks.append(dict(type='FillDisk'))
    cfg.visualizer.vis_backends = []
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises((UserError, OSError)):
            run.train(cfg)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        toy.end_workers()
    names = {path.name for path in (tmp_path / 'full').glob('*.pth')}
    assert names == {'iter_3.pth'}
    resumed = script.run(
        script.config('no_queue', str(tmp_path / 'full'), resume=True, **script.SHORT)
    )
    assert different_runs(whole, resumed) == []


@pytest.mark.slow
def test_resume_after_kills_is_exact(tmp_path):
    """The process is killed while it trains, saves or starts. `tools/train.py --resume` then continues."""
    cfg = script.config('workers', str(tmp_path / 'whole'), every=2)
    whole = script.run(script.config('workers', str(tmp_path / 'whole'), every=2))
    cfg.resume = False
    (tmp_path / 'config.yaml').write_text(config_text(cfg))
    program = 'import harness.resume, runpy, sys; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name="__main__")'
    words = [
        'tools/train.py',
        str(tmp_path / 'config.yaml'),
        '--work-dir',
        str(tmp_path / 'killed'),
        '--resume',
    ]
    environment = {**os.environ, 'PYTHONPATH': f'{ROOT}:{ROOT / "tests"}'}
    for seconds in (14, 17, 20, None):
        process = subprocess.Popen(
            [sys.executable, '-c', program, *words], env=environment, cwd=ROOT
        )
        try:
            assert process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert different_runs(whole, Path((tmp_path / 'killed' / 'last_checkpoint').read_text())) == []


@HOOKS.register_module(force=True)
class TrainMode(Hook):
    """Put a schedule-free optimizer into its training mode, as its users must do."""

    def before_train(self, runner) -> None:
        if hasattr(runner.optim_wrapper.optimizer, 'train'):
            runner.optim_wrapper.optimizer.train()


# Optimizers that keep state in their parameter groups.
ADAPTIVE = {
    'prodigyopt.Prodigy': dict(lr=1.0),
    'schedulefree.AdamWScheduleFree': dict(lr=1e-3),
    'timm.optim.Lamb': dict(lr=1e-3),
}


def adaptive(toy_config, kind: str, folder: Path, *hooks: dict, **options):
    pytest.importorskip(kind.partition('.')[0])
    cfg = toy_config(
        width=8, steps=4, work_dir=str(folder), **{'default_hooks.checkpoint.interval': 2}
    )
    optimizer = dict(type=kind, weight_decay=1e-4, **ADAPTIVE[kind])
    cfg.optim_wrapper = dict(type='AutocastOptimWrapper', optimizer=optimizer)
    cfg.custom_hooks = [dict(type='TrainMode'), *hooks]
    cfg.merge_from_dict(options)
    return cfg


@pytest.mark.parametrize('kind', ADAPTIVE)
def test_resume_keeps_state_in_the_groups_of_an_optimizer(toy_config, tmp_path, kind):
    whole = script.run(adaptive(toy_config, kind, tmp_path / 'whole'))
    script.run(adaptive(toy_config, kind, tmp_path / 'left', dict(type='LeaveAt', iteration=3)))
    resumed = script.run(adaptive(toy_config, kind, tmp_path / 'left', resume=True))
    assert different_runs(whole, resumed) == []
    start = dict(resume=True, load_from=str(tmp_path / 'whole' / 'iter_2.pth'))
    changed = {'optim_wrapper.optimizer.weight_decay': 0.5, 'optim_wrapper.optimizer.lr': 0.02}
    group = run.train(
        adaptive(toy_config, kind, tmp_path / 'b', **start, **changed)
    ).optim_wrapper.param_groups[0]
    stored = torch.load(resumed, weights_only=True)['optimizer']['param_groups'][0]
    assert (group['weight_decay'], group['initial_lr'], stored['weight_decay']) == (0.5, 0.02, 1e-4)
    assert [group[key] for key in ('k', 'step') if key in group] == [4]


def test_one_cycle_resumes_exactly_and_without_a_warning(toy_config, tmp_path):
    schedule = [dict(type='OneCycleLR', eta_max=0.1, total_steps=4, by_epoch=False)]
    options = {'default_hooks.checkpoint.interval': 2, 'param_scheduler': schedule}
    whole = script.run(toy_config(width=8, steps=4, work_dir=str(tmp_path / 'whole'), **options))
    options['work_dir'] = str(tmp_path / 'left')
    script.run(
        toy_config(width=8, steps=4, **options, custom_hooks=[dict(type='LeaveAt', iteration=3)])
    )
    resumed = script.run(toy_config(width=8, steps=4, **options, resume=True))
    assert different_runs(whole, resumed) == []
    assert not any('WARNING' in log.read_text() for log in (tmp_path / 'whole').glob('*/*.log'))


def test_other_optimizer_or_batch_raises(toy_config, tmp_path):
    run.train(toy_config(width=8, steps=2, work_dir=str(tmp_path / 'a')))
    start = dict(
        resume=True, load_from=str(tmp_path / 'a' / 'iter_1.pth'), work_dir=str(tmp_path / 'b')
    )
    adam = {'optim_wrapper.optimizer': dict(type='AdamW', lr=0.01, _delete_=True)}
    with raises_code('other-optimizer'):
        run.train(toy_config(width=8, steps=2, **start, **adam))
    with raises_code('other-batches', 'images_per_step'):
        run.train(toy_config(width=8, steps=2, batch=4, **start))


def test_resume_with_another_rate_uses_its_whole_schedule(toy_config, tmp_path):
    """`--resume CKPT --work-dir NEW --cfg-options ...` continues in another folder, and the log lists the change."""
    run.train(toy_config(width=8, steps=4, work_dir=str(tmp_path / 'a')))
    start = dict(
        resume=True, load_from=str(tmp_path / 'a' / 'iter_2.pth'), work_dir=str(tmp_path / 'b')
    )
    cfg = toy_config(width=8, steps=4, **start, **{'optim_wrapper.optimizer.lr': 1.0})
    runner = run.train(cfg)
    rates = runner.message_hub.get_scalar('train/lr').data[0]
    assert rates[-2:] == pytest.approx([0.5, 0.146447], abs=1e-5)  # a cosine over four steps
    log = next(Path(runner.log_dir).glob('*.log')).read_text()
    assert 'optim_wrapper.optimizer.lr: ' in log
    assert (tmp_path / 'a' / 'iter_3.pth').exists() and not (tmp_path / 'b' / 'iter_2.pth').exists()


def test_foreign_sampler_warns_that_a_resume_differs(toy_config):
    cfg = toy_config(
        width=8, steps=2, **{'train_dataloader.sampler': dict(type='mmengine.DefaultSampler')}
    )
    cfg.train_dataloader.sampler = dict(type='mmengine.DefaultSampler', shuffle=True)
    run.train(cfg)
    again = cfg.copy()
    again.update(resume=True, load_from=f'{cfg.work_dir}/iter_1.pth', experiment_name='again')
    runner = run.train(again)
    log = next(Path(runner.log_dir).glob('*.log')).read_text()
    assert 'will differ from an uninterrupted run: DefaultSampler' in log


@HOOKS.register_module(force=True)
class Scores(Hook):
    """Replace the validation by scores that fall after the second one."""

    def before_train(self, runner) -> None:
        runner.val_loop.run = lambda: runner.call_hook(
            'after_val_epoch', metrics={'score': self.score(runner)}
        )
        self.seen = []

    def score(self, runner) -> float:
        self.seen.append(runner.iter)
        return -abs(runner.iter - 2.0)


def validated(toy_config, **options):
    cfg = toy_config(width=8, steps=6, **{'default_hooks.checkpoint.save_best': 'score'})
    cfg.default_hooks.checkpoint.update(rule='greater', max_keep_ckpts=2)
    cfg.train_cfg.val_interval = 1
    cfg.evaluation = toy.KNN
    cfg.merge_from_dict(
        dict(val_cfg=dict(type='KNNValLoop'), val_dataloader=dict(), val_evaluator=[], **options)
    )
    stop = dict(type='EarlyStoppingHook', monitor='score', patience=2, rule='greater')
    cfg.custom_hooks = [dict(type='Scores'), stop, *cfg.get('custom_hooks', [])]
    return cfg


def test_resumed_run_begins_with_the_validation_that_is_due(toy_config):
    """The run ends after two worse scores, and the best checkpoint stays. An interruption changes neither."""
    cfg = validated(toy_config, custom_hooks=[dict(type='LeaveAt', iteration=4)])
    with pytest.raises(script.LeftInTheMiddle):
        run.train(cfg)
    runner = run.train(validated(toy_config, resume=True))
    scores = next(hook for hook in runner.hooks if isinstance(hook, Scores))
    assert scores.seen == [4] and runner.iter == 4
    names = {path.name for path in Path(cfg.work_dir).glob('*.pth')}
    assert names == {'best_score_iter_2.pth', 'iter_3.pth', 'iter_4.pth'}


def test_two_processes_resume_exactly(tmp_path, run_processes):
    """A run of two processes, also after a signal to one of them, and a run of one that two continue."""
    script.run(script.config('no_queue', str(tmp_path / 'of_one'), leave_at=4, **script.SHORT))
    output = run_processes(2, script.__file__, tmp_path)
    last = {
        name: Path((tmp_path / name / 'last_checkpoint').read_text())
        for name in ('whole', 'left', 'stopped')
    }
    assert different_runs(last['whole'], last['left']) == []
    assert different_runs(last['whole'], last['stopped']) == []
    assert output.count('stopped by SIGUSR1') == 2
    assert (
        torch.load(Path((tmp_path / 'of_one' / 'last_checkpoint').read_text()), weights_only=True)[
            'meta'
        ]['iter']
        == 8
    )


def test_command_exits_75_after_a_signal(toy_config):
    from functools import partial

    from mmairl.errors import one_sentence_errors

    signaled = [dict(type='SignalAt', iteration=2, number=signal.SIGUSR1)]
    cfg = toy_config(
        width=8,
        steps=6,
        batch=12,
        custom_hooks=signaled,
        **{'optim_wrapper.accumulative_counts': 3},
    )
    with pytest.raises(SystemExit) as error:
        one_sentence_errors(partial(run.train, cfg))()
    assert error.value.code == AGAIN
    assert (Path(cfg.work_dir) / 'last_checkpoint').read_text().endswith('/iter_3.pth')


def test_finished_run_resumes_to_the_same_end(toy_config):
    run.train(toy_config(width=8, steps=2))
    assert Runner.from_cfg(toy_config(width=8, steps=2, resume=True)).train() is not None
