"""Logs of runs in wandb and MLflow. A stand-in records calls; the real packages are used where they are installed."""

import importlib.machinery
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from harness.errors import raises_code

from mmairl.config import python_text
from mmairl.engine.checkpoint import settings
from mmairl.engine.curves import read_scalars
from mmairl.engine.logging import Service, WandbLogger, log_to
from mmairl.engine.run import train


class Recorder(ModuleType):
    """Stand in for wandb or MLflow: it has the parts that a run needs and records all calls."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)
        self.calls: list[tuple] = []
        self.curves: dict = defaultdict(list)
        self.info = SimpleNamespace(run_id='7')
        self.resumed = False
        self.summary: dict = {}
        self.data = SimpleNamespace(metrics=['loss'])
        self.tags: list[dict] = []

    def __getattr__(self, name: str):
        def call(*arguments, **options):
            self.calls.append((name, arguments, options))
            return self

        return call

    def search_runs(self, filter_string: str, **_: object) -> list:
        id_ = filter_string.split("'")[1]
        return [self] if any(tags.get('mmairl.run') == id_ for tags in self.tags) else []

    def start_run(self, tags: dict | None = None, **options: object) -> 'Recorder':
        self.calls.append(('start_run', (), options))
        self.tags.append(tags or {})
        return self

    def get_metric_history(self, run_id: str, name: str) -> list:
        return [SimpleNamespace(step=step) for step, _ in self.curves[name]]

    def log(self, values: dict) -> None:
        self.log_metrics({key: value for key, value in values.items() if key != 'iteration'}, values['iteration'])

    def log_metrics(self, values: dict, step: int, run_id: str | None = None) -> None:
        for name, value in values.items():
            self.curves[name].append((step, value))

    def called(self, name: str) -> tuple:
        return next((arguments, options) for called, arguments, options in self.calls if called == name)


def run_with(cfg, *names: str):
    cfg.default_hooks.health.interval, cfg.default_hooks.logger.interval = 2, 1
    log_to(cfg, names)
    return train(cfg)


@pytest.mark.parametrize('name', ['wandb', 'mlflow'])
def test_config_loss_and_health_arrive_by_iterations(name, toy_config, monkeypatch):
    service = Recorder(name)
    monkeypatch.setitem(sys.modules, name, service)
    cfg = toy_config(steps=4, width=8)
    run_with(cfg, name)
    if name == 'wandb':
        _, started = service.called('init')
        assert started['config']['optim_wrapper'] == cfg.optim_wrapper.to_dict() and started['name'] == 'run'
    else:
        assert service.called('log_params')[0][0] == settings(cfg)
        assert service.called('log_text')[0] == (python_text(cfg), 'config.py')
    assert service.calls[-1][0] in ('finish', 'end_run')
    curves = {
        key: [(int(step), value) for step, value in zip(*curve)] for key, curve in read_scalars(cfg.work_dir).items()
    }
    for key in ('loss', 'health_spread_key', 'health_gradient_norm'):
        assert service.curves[key] == curves[key], key
    assert [step for step, _ in service.curves['health_spread_key']] == [2, 4]
    assert [step for step, _ in service.curves['loss']] == [1, 2, 3, 4]


def keep_checkpoints(cfg, count: int) -> None:
    """Remove the checkpoints after step `count`, as if the run had been killed before it wrote them."""
    for number in range(count + 1, 7):
        (Path(cfg.work_dir) / f'iter_{number}.pth').unlink()


@pytest.mark.parametrize('name', ['wandb', 'mlflow'])
def test_resumed_run_is_the_same_at_the_service(name, toy_config, monkeypatch):
    service = Recorder(name)
    monkeypatch.setitem(sys.modules, name, service)
    first = toy_config(steps=6, width=8)
    run_with(first, name)
    keep_checkpoints(first, count=4)
    service.curves['loss'] = service.curves['loss'][:5]
    service.resumed = True
    service.summary = dict(iteration=5)
    again = toy_config(steps=6, width=8)
    again.resume = 'auto'
    run_with(again, name)
    assert [step for step, _ in service.curves['loss']] == [1, 2, 3, 4, 5, 6]
    if name == 'wandb':
        starts = [options for called, _, options in service.calls if called == 'init']
        assert starts[0]['id'] == starts[1]['id'] == (Path(first.work_dir) / 'run_id').read_text().strip()
        assert starts[1]['resume'] == 'allow'
    else:
        starts = [options for called, _, options in service.calls if called == 'start_run']
        assert starts[1] == dict(run_id='7') and 'run_id' not in starts[0]
        assert len([called for called, *_ in service.calls if called == 'log_params']) == 1


def test_failing_server_does_not_end_the_run(toy_config, monkeypatch, caplog):
    service, requests = Recorder('mlflow'), []
    service.log_metrics = lambda *_, **__: requests.append(1) or 1 / 0
    monkeypatch.setitem(sys.modules, 'mlflow', service)
    cfg = toy_config(steps=3, width=8)
    assert run_with(cfg, 'mlflow').iter == 3
    log = next(Path(cfg.work_dir).glob('*/*.log')).read_text()
    assert log.count('mlflow failed, and the run continues without it: division by zero') == 1 == len(requests)


def test_only_the_first_process_logs(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'wandb', Recorder('wandb'))
    other = WandbLogger('work_dirs/run/20260101_000000/vis_data')
    other.close()
    assert (other.name, other.failed) == ('run', False) and 'failed' not in capsys.readouterr().out


def test_bad_logger_raises(toy_config, monkeypatch, tmp_path):
    cfg = toy_config(steps=1, width=8)
    with raises_code('unknown-logger', match="did you mean 'wandb'"):
        log_to(cfg, ['wandbb'])
    log_to(cfg, 'tensorboard')
    log_to(cfg, ['tensorboard'])
    assert [one['type'] for one in cfg.visualizer.vis_backends] == ['LocalVisBackend', 'TensorboardVisBackend']
    monkeypatch.setitem(sys.modules, 'wandb', None)
    with raises_code('logger-failed', match=r"pip install 'mmairl\[log\]'"):
        run_with(toy_config(steps=1, width=8), 'wandb')
    monkeypatch.undo()
    service = Recorder('wandb')
    service.init = lambda **_: 1 / 0
    monkeypatch.setitem(sys.modules, 'wandb', service)
    with raises_code('logger-failed', match='division by zero'):
        run_with(toy_config(steps=1, width=8), 'wandb')


def test_real_wandb_stores_an_offline_run(toy_config, monkeypatch):
    wandb = pytest.importorskip('wandb', reason="wandb is not installed (pip install 'mmairl[log]')")
    monkeypatch.setenv('WANDB_MODE', 'offline')
    closed_runs = []
    monkeypatch.setattr(
        Service, 'close', lambda self: closed_runs.append((dict(self.run.config), dict(self.run.summary))) or self.end()
    )
    cfg = toy_config(steps=4, width=8)
    run_with(cfg, 'wandb')
    (config, summary), curves = closed_runs[0], read_scalars(cfg.work_dir)
    assert config['train_cfg'] == cfg.train_cfg.to_dict()
    assert summary['iteration'] == 4 and summary['health_spread_key'] == curves['health_spread_key'][1][-1]
    assert list(Path(cfg.work_dir).rglob('offline-run-*/*.wandb')) and wandb.run is None


def interrupt_and_resume(toy_config, backend):
    first = toy_config(steps=6, width=8)
    run_with(first, backend)
    keep_checkpoints(first, count=4)
    again = toy_config(steps=6, width=8)
    again.resume = 'auto'
    run_with(again, backend)
    return Path(first.work_dir)


def test_real_wandb_keeps_the_id_of_a_resumed_run(toy_config, monkeypatch):
    pytest.importorskip('wandb', reason="wandb is not installed (pip install 'mmairl[log]')")
    monkeypatch.setenv('WANDB_MODE', 'offline')
    work_dir = interrupt_and_resume(toy_config, 'wandb')
    folders = work_dir.rglob('offline-run-*')
    ids = [folder.name.split('-', 3)[3] for folder in folders if folder.is_dir()]
    assert ids == 2 * [(work_dir / 'run_id').read_text().strip()]


def test_real_mlflow_continues_a_resumed_run(toy_config, monkeypatch, tmp_path):
    pytest.importorskip('sqlalchemy', reason="mlflow is not installed (pip install 'mmairl[log]')")
    mlflow = pytest.importorskip('mlflow', reason="mlflow is not installed (pip install 'mmairl[log]')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('MLFLOW_TRACKING_URI', f'sqlite:///{tmp_path}/mlflow.db')
    interrupt_and_resume(toy_config, 'mlflow')
    (run,) = mlflow.search_runs(experiment_names=['mmairl'], output_format='list')
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, 'loss')
    assert [metric.step for metric in history] == [1, 2, 3, 4, 5, 6]
