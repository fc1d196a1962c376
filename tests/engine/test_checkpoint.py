"""Checkpoints: a run chooses its start checkpoint, reads the file once, and removes only its own outdated files."""

import os
from pathlib import Path

import pytest
import torch
from harness import resume as resuming
from harness import toy
from harness.errors import raises_code
from mmengine.config import Config
from mmengine.hooks import CheckpointHook, Hook

from mmairl.config import load_config
from mmairl.engine import run as launch
from mmairl.engine.checkpoint import RunStart, choose_start, consolidate, load_checkpoint, newest_checkpoint, run_in
from mmairl.engine.hooks.saving import ExactCheckpointHook
from mmairl.engine.runner import Runner
from mmairl.registry import HOOKS

FILES = Path(__file__).parents[1] / 'files'


def training_checkpoint(**meta: object) -> dict:
    return dict(meta=dict(epoch=1, iter=1, **meta), state_dict=dict(weight=torch.randn(100)), optimizer={})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the checkpoints epoch_1, epoch_2 and iter_25, the oldest first.

    The folder also has two newer files from which no run may resume: the best checkpoint, and plain weights.
    """
    for place, name in enumerate(['epoch_1.pth', 'epoch_2.pth', 'iter_25.pth', 'best_top1.pth', 'weights.pth']):
        torch.save(training_checkpoint() if 'weights' not in name else dict(a=torch.ones(1)), tmp_path / name)
        os.utime(tmp_path / name, (place, place))
    return tmp_path


def name_of_newest(folder: Path, run: str | None = None) -> str | None:
    newest = newest_checkpoint(folder, run)
    return newest and newest[0].name


def flip(path: Path) -> None:
    """Flip one bit of the weights, which torch would not notice."""
    data = bytearray(path.read_bytes())
    data[data.index(b'data/0') + 200] ^= 4
    time = path.stat().st_mtime
    path.write_bytes(data)
    os.utime(path, (time, time))


def test_newest_checkpoint_is_the_noted_or_last_file(folder):
    assert name_of_newest(folder) == 'iter_25.pth' and newest_checkpoint(folder / 'not there') is None
    for note, expected in (
        (b'/another/machine/epoch_2.pth', 'epoch_2.pth'),
        (b'/gone/epoch_9.pth', 'iter_25.pth'),
        (bytes(range(256)), 'iter_25.pth'),
    ):
        (folder / 'last_checkpoint').write_bytes(note)
        assert name_of_newest(folder) == expected


def test_note_of_a_resumed_run_is_an_absolute_path(folder, monkeypatch):
    monkeypatch.chdir(folder)
    RunStart(run='a', path='iter_25.pth', resume=True).begin(Path())
    assert (folder / 'last_checkpoint').read_text() == str(folder / 'iter_25.pth')


def test_tensor_in_the_work_dir_is_skipped(folder):
    torch.save(torch.zeros(3), folder / 'features.pth')
    assert name_of_newest(folder) == 'iter_25.pth'


def test_damaged_checkpoint_falls_back_to_the_previous(folder):
    flip(folder / 'iter_25.pth')
    (folder / 'dangling.pth').symlink_to(folder / 'gone')
    assert name_of_newest(folder) == 'epoch_2.pth'
    (folder / 'epoch_2.pth').write_bytes((folder / 'epoch_2.pth').read_bytes()[:-100])
    assert name_of_newest(folder) == 'epoch_1.pth'
    (folder / 'epoch_1.pth').write_bytes(b'')
    with raises_code('all-checkpoints-damaged'):
        newest_checkpoint(folder)


def choice(folder: Path, **how: object) -> tuple[RunStart, Config]:
    cfg = Config(dict(work_dir=str(folder), **{'resume': True, **how}))
    return choose_start(cfg), cfg


def test_new_run_in_an_old_folder_ignores_old_files(folder):
    """A run that was killed before its first checkpoint must not resume from the checkpoint of an earlier run, unless
    `load_from` names this checkpoint.
    """
    RunStart(run='new').begin(folder)
    start, cfg = choice(folder)
    assert not start.resume and start.checkpoint is None and cfg.load_from is None
    weights = str(folder / 'weights.pth')
    start, cfg = choice(folder, resume='auto', load_from=weights)
    assert not start.resume and cfg.load_from == weights and 'a' in start.checkpoint
    torch.save(training_checkpoint(run='new'), folder / 'epoch_1.pth')
    (folder / 'last_checkpoint').write_text('iter_25.pth')
    start, _ = choice(folder)
    assert start.resume and Path(start.path).name == 'epoch_1.pth' and start.run == 'new'
    torch.save(training_checkpoint(run='old'), folder / 'epoch_2.pth')
    start, _ = choice(folder, load_from=str(folder / 'epoch_2.pth'))
    start.begin(folder)
    assert start.run == 'old' and name_of_newest(folder, run_in(folder)) == 'epoch_2.pth'


def test_restart_prefers_checkpoints_of_its_own_run(folder, tmp_path):
    named = tmp_path / 'elsewhere' / 'epoch_1.pth'
    named.parent.mkdir()
    torch.save(training_checkpoint(run='a'), named)
    cfg = dict(work_dir=str(folder), resume='again', load_from=str(named))
    start = choose_start(Config(cfg))
    # So far, all checkpoints in the folder belong to other runs.
    assert start.path == str(named) and start.resume and start.run == 'a'
    torch.save(training_checkpoint(run='a'), folder / 'iter_3.pth')
    start = choose_start(Config(cfg))
    assert Path(start.path).name == 'iter_3.pth' and start.resume and start.run == 'a'


def test_note_that_is_a_folder_raises(folder):
    (folder / 'last_checkpoint').mkdir()
    with raises_code('not-a-file'):
        RunStart(run='new').begin(folder)


def test_consolidate_names_unusable_values(tmp_path):
    weights = dict(
        good=torch.ones(2),
        count=torch.tensor(1),
        lost=torch.tensor([float('nan')]),
        half=torch.zeros(2, dtype=torch.int8),
        note='text',
    )
    torch.save(dict(meta=dict(run=None), state_dict=weights), tmp_path / 'a.pth')
    summary = consolidate(tmp_path / 'a.pth', tmp_path / 'b.pth')
    assert 'lost (not finite), half (int8), note (text)' in summary
    assert 'good' not in summary
    assert 'count' not in summary


SPOILED = {
    'weights-not-finite': lambda saved: saved['state_dict']['backbone.conv1.weight'][0].fill_(float('nan')),
    'malformed-checkpoint': lambda saved: saved['optimizer']['state'][0].update(momentum_buffer='text'),
    'other-epoch-length': lambda saved: saved['place'].update(steps=saved['place']['steps'] + 1),
}


@pytest.fixture(scope='module')
def saved(tmp_path_factory) -> Path:
    """Return the path of the first checkpoint of a run of two steps."""
    cfg = toy.config('mocov2plus_r50_200e.py', str(tmp_path_factory.mktemp('saved')), steps=2, width=4)
    return Path(launch.train(cfg).work_dir) / 'iter_1.pth'


@pytest.mark.parametrize('code', SPOILED)
def test_resume_from_a_spoiled_checkpoint_raises(toy_config, saved, tmp_path, code):
    checkpoint = load_checkpoint(saved)
    SPOILED[code](checkpoint)
    torch.save(checkpoint, tmp_path / 'iter_1.pth')
    with raises_code(code):
        launch.train(toy_config(steps=2, width=4, resume=True, load_from=str(tmp_path / 'iter_1.pth')))


def test_resume_from_an_older_file_is_remembered(folder):
    for epoch in (1, 2):
        torch.save(training_checkpoint(run='a'), folder / f'epoch_{epoch}.pth')
    (folder / 'last_checkpoint').write_text('epoch_2.pth')
    cfg = dict(work_dir=str(folder), resume=True, load_from=str(folder / 'epoch_1.pth'))
    choose_start(Config(cfg)).begin(folder)
    for how in (dict(cfg, resume='again'), dict(work_dir=str(folder), resume='auto')):
        assert Path(choose_start(Config(how)).path).name == 'epoch_1.pth'


def test_resume_reads_the_tensors_of_its_file_once(tmp_path, monkeypatch):
    resuming.run(resuming.config('views_of_the_batch', str(tmp_path), leave_at=5))
    mapped = []
    load = torch.load

    def counted(*args: object, **options: object) -> dict:
        mapped.append(options.get('mmap', False))
        return load(*args, **options)

    monkeypatch.setattr(torch, 'load', counted)
    resuming.run(resuming.config('views_of_the_batch', str(tmp_path), leave_at=6, resume=True))
    assert mapped.count(False) == 1


def test_out_dir_works_for_save_resume_and_cleanup(tmp_path):
    """The newest checkpoint is damaged. The run resumes from the previous checkpoint and still equals the uninterrupted run."""
    whole = resuming.run(resuming.config('views_of_the_batch', str(tmp_path / 'whole')))
    for resume, leave_at in ((True, 9), (True, None)):
        cfg = resuming.config('views_of_the_batch', str(tmp_path / 'run'), leave_at=leave_at, resume=resume)
        cfg.default_hooks.checkpoint.out_dir = str(tmp_path / 'elsewhere')
        last = resuming.run(cfg)
        if leave_at:
            flip(last)
    assert last.parent == tmp_path / 'elsewhere' / 'run' and not list((tmp_path / 'run').glob('*.pth'))
    resuming.assert_the_same_run(whole, last)


def test_load_from_loads_weights_only(tmp_path):
    """Seed, batch size and online probe come from the new config, not from the checkpoint."""
    other = resuming.run(resuming.config('views_of_the_batch', str(tmp_path / 'other'), leave_at=5))
    cfg = resuming.config('views_of_the_batch', str(tmp_path / 'new'), leave_at=1, batch=4)
    cfg.load_from, cfg.randomness.seed = str(other), 11
    # With a learning rate of 0, the probe keeps its initial weights.
    cfg.custom_hooks[0].lr = 0.0
    cfg.default_hooks.checkpoint.interval = 1
    before, after = load_checkpoint(other), load_checkpoint(resuming.run(cfg))
    assert before['place']['seed'] != after['place']['seed'] and after['place']['images_per_step'] == 4
    key = 'backbone.conv1.weight'
    assert torch.allclose(after['state_dict'][key], before['state_dict'][key], atol=0.01)
    probe = after['online_probe']['probe']['weight']
    assert torch.equal(probe, 0.01 * torch.randn(probe.shape, generator=torch.Generator().manual_seed(0)))


def old_config(work_dir: Path) -> Config:
    """Return, in today's form, the config with which commit 96d53a7 wrote tests/files/before_the_house.pth."""
    cfg = load_config(str(FILES.parents[1] / 'configs/demo/mocov2plus_shapes.py'))
    cfg.model.backbone.update(stem_channels=2, base_channels=2)
    cfg.model.projector.update(in_channels=16, hidden_channels=8, out_channels=4)
    cfg.model.predictor.update(in_channels=4, hidden_channels=8, out_channels=4)
    cfg.model.queue.length = 16
    cfg.train_dataloader.dataset.update(count=36, size=32)
    cfg.total_batch_size, cfg.optim_wrapper.optimizer.lr = 8, 0.05
    cfg.train_cfg = dict(by_epoch=True, max_epochs=3)
    schedule = dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=True, begin=0, end=3, convert_to_iter_based=True)
    cfg.param_scheduler = [schedule]
    cfg.default_hooks.checkpoint = dict(type='ExactCheckpointHook', by_epoch=False, interval=6, max_keep_ckpts=9)
    cfg.default_hooks.pop('progress')
    cfg.default_hooks.logger.interval = 1
    cfg.visualizer.vis_backends = [dict(type='LocalVisBackend')]
    cfg.randomness.seed, cfg.custom_hooks = 5, []
    cfg.work_dir = str(work_dir)
    cfg.resume, cfg.load_from = True, str(FILES / 'before_the_house.pth')
    return cfg


# With this config, commit 96d53a7 reached these values at iteration 12.
OLD = {
    'backbone.conv1.weight': [2.86868072, 2.74249601, 1.63578558, 0.70546979],
    'teacher.backbone.conv1.weight': [0.65883887, 0.85651362, 0.46041384, 0.13085245],
    'backbone.layer4.1.bn2.running_var': [0.45661083, 25.22126961, 1.17091882, 0.30074039],
    'queue.vectors': [0.11464897, 0.14455585, -0.14420292, 0.97219586],
}
# OLD_SUM is the sum of the absolute values of weights and queue, and OLD_MOMENTA that of the
# momenta.
OLD_SUM, OLD_MOMENTA = 7268.672979419987, 5599.789806782663


def test_old_checkpoint_resumes_to_the_same_weights(tmp_path):
    # On CPUs without AVX-512, oneDNN would write beyond its memory when it computes the gradient of
    # a channels-last 1 x 1 convolution of two channels.
    with torch.backends.mkldnn.flags(enabled=False):
        runner = launch.train(old_config(tmp_path))
    state = runner.model.state_dict()
    assert runner.iter == 12
    for key, expected in OLD.items():
        # The tolerances allow for CPUs that round differently.
        assert state[key].flatten()[:4].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5), key
    learnt = [value for key, value in state.items() if value.is_floating_point() and 'running' not in key]
    momenta = [moment['momentum_buffer'] for moment in runner.optim_wrapper.optimizer.state.values()]
    assert sum(value.double().abs().sum().item() for value in learnt) == pytest.approx(OLD_SUM, rel=1e-5)
    assert sum(value.double().abs().sum().item() for value in momenta) == pytest.approx(OLD_MOMENTA, rel=1e-5)


@pytest.mark.parametrize('name', ['/abs/{}.pth', '../{}.pth', 'a.pth', '{:999999999}.pth'])
def test_template_with_a_folder_raises(name):
    with raises_code('bad-file-name'):
        ExactCheckpointHook(filename_tmpl=name)


def test_non_finite_weights_replace_no_checkpoint(toy_config, monkeypatch):
    """The NaN is in a batch-norm statistic of the teacher, so the loss stays finite."""
    cfg = toy_config(steps=4)
    cfg.default_hooks.checkpoint.max_keep_ckpts = 1
    usual = ExactCheckpointHook.before_train_iter

    def spoil(hook, runner, *args: object, **how: object) -> None:
        if runner.iter + 1 == 3:
            runner.model.teacher.backbone.bn1.running_mean[0] = float('nan')
        usual(hook, runner, *args, **how)

    monkeypatch.setattr(ExactCheckpointHook, 'before_train_iter', spoil)
    with raises_code('weights-not-finite', 'resume from .*iter_2.pth'):
        launch.train(cfg)
    assert [path.name for path in Path(cfg.work_dir).glob('*.pth')] == ['iter_2.pth']


def test_best_weights_may_precede_the_first_checkpoint(toy_config):
    cfg = toy_config()
    launch.share_batch(cfg, 1)
    checkpoint = dict(state_dict={})
    launch.build_runner(cfg).call_hook('before_save_checkpoint', checkpoint=checkpoint)
    assert checkpoint['random_states'] == []


def with_mmengines_hook(case: str, work_dir: Path, **how: object) -> Config:
    """Return a config that saves by mmengine's CheckpointHook, as OpenMMLab's configs do."""
    cfg = resuming.config(case, str(work_dir), **how)
    cfg.default_hooks.checkpoint = dict(type='CheckpointHook', interval=1, max_keep_ckpts=2)
    return cfg


@pytest.mark.parametrize('case', ['views_of_the_batch', 'lars_accumulated'])
def test_run_with_mmengines_hook_resumes_exactly(tmp_path, case):
    leave_at = 17 if case == 'lars_accumulated' else 8
    whole = resuming.run(with_mmengines_hook(case, tmp_path / 'whole'))
    interrupted = resuming.run(with_mmengines_hook(case, tmp_path / 'run', leave_at=leave_at))
    assert interrupted.name == 'epoch_1.pth'
    resumed = resuming.run(with_mmengines_hook(case, tmp_path / 'run', resume=True))
    assert resumed.name == 'epoch_3.pth'
    resuming.assert_the_same_run(whole, resumed)
    assert [path.name for path in sorted(resumed.parent.glob('*.pth'))] == ['epoch_2.pth', 'epoch_3.pth']


@pytest.mark.parametrize('kind', [CheckpointHook, 'mmengine.CheckpointHook', None])
def test_every_name_of_mmengines_hook_saves_exactly(toy_config, kind):
    cfg = toy_config(steps=1, width=4)
    if kind is None:
        # Without a checkpoint hook in the config, mmengine adds its own.
        del cfg.default_hooks['checkpoint']
    else:
        cfg.default_hooks.checkpoint = dict(type=kind, by_epoch=False, interval=1)
    hooks = Runner.from_cfg(cfg).hooks
    assert [type(hook) for hook in hooks if isinstance(hook, CheckpointHook)] == [ExactCheckpointHook]


def test_checkpoint_of_another_hook_resumes(toy_config, tmp_path):
    """A subclass of mmengine's hook is not replaced, but mmairl's runner writes the checkpoints that the hook requests."""

    class Foreign(CheckpointHook):
        pass

    def train(**options: object) -> Config:
        cfg = toy_config(steps=3, width=4, **options)
        cfg.default_hooks.checkpoint = dict(type=Foreign, by_epoch=False, interval=1, max_keep_ckpts=1)
        cfg.custom_hooks = [dict(type='LeaveAt', iteration=2)] if 'resume' not in options else []
        resuming.run(cfg)
        return cfg

    first = train()
    note = Path(first.work_dir) / 'last_checkpoint'
    assert Path(note.read_text()).name == 'iter_2.pth'
    second = train(resume=True)
    assert Path(note.read_text()).name == 'iter_3.pth'
    log = max(Path(second.work_dir).glob('*/*.log')).read_text()
    assert 'resumed after epoch 0, iteration 2' in log
    torch.load(note.read_text(), weights_only=True)


@pytest.mark.parametrize('kind', ['ExactCheckpointHook', 'CheckpointHook', 'subclass'])
def test_foreign_checkpoint_deletes_no_file(toy_config, tmp_path, kind):
    """The message hub of a malicious checkpoint names other files and folders as old checkpoints.

    When a better score arrives, a checkpoint hook deletes the previous best checkpoint.
    """

    class Subclass(CheckpointHook):
        pass

    (tmp_path / 'folder/inside').mkdir(parents=True)
    victims = [tmp_path / 'victim.txt', tmp_path / 'victim.pth']
    cfg = toy_config(steps=1, width=4)
    launch.train(cfg)
    path = Path(cfg.work_dir) / 'iter_1.pth'
    victims += [path.with_name('notes.pth'), path.parent / 'sub/epoch_1.pth']
    victims[-1].parent.mkdir()
    for file in victims:
        file.touch()
    foreign = load_checkpoint(path)
    outside = ['../victim.pth', str(tmp_path / 'victim.pth'), 'sub/epoch_1.pth', 'notes.pth', 7]
    foreign['message_hub']['runtime_info'].update(
        best_ckpt=str(tmp_path / 'victim.txt'),
        best_ckpt_top1=str(tmp_path / 'folder'),
        best_score=-1.0,
        keep_ckpt_ids=['../folder', '../../folder', 1, 2],
        kept_checkpoints=[*outside, 'iter_7.pth', 'iter_1.pth'],
        outdated_checkpoints=[*outside, 'iter_8.pth'],
    )
    torch.save(foreign, path)
    # These checkpoints belong to another run.
    for number in (7, 8):
        torch.save(training_checkpoint(run='other'), path.with_name(f'iter_{number}.pth'))
    again = toy_config(steps=3, width=4, resume=True, load_from=str(path), **{'train_dataloader.dataset.count': 8})
    again.train_dataloader.dataset.count = 8
    options = dict(type=Subclass if kind == 'subclass' else kind, by_epoch=False, interval=1, max_keep_ckpts=1)
    again.default_hooks.checkpoint = dict(save_best='top1', rule='greater', **options)
    again.custom_hooks = [dict(type='BestAtTheEnd')]
    runner = launch.train(again)
    assert runner.iter == 3 and list(path.parent.glob('best_top1_*.pth'))
    assert all(file.is_file() for file in victims) and (tmp_path / 'folder/inside').is_dir()
    assert {'iter_7.pth', 'iter_8.pth'} <= {file.name for file in path.parent.iterdir()}


@HOOKS.register_module(force=True)
class BestAtTheEnd(Hook):
    """Report a better score after the last step, as a validation would do."""

    priority = 'LOWEST'

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if runner.iter + 1 == runner.max_iters:
            saves = next(hook for hook in runner.hooks if isinstance(hook, CheckpointHook))
            saves.after_val_epoch(runner, dict(top1=1.0))
