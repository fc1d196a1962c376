"""A resumed run continues its run at wandb and at MLflow, with the iteration of each value."""

import pytest
from mmengine.config import Config

from mmairl.engine.logging import keep_run, log_to
from mmairl.registry import VISBACKENDS

RUN = 'abc123'


def log(name, folder, step):
    """Log one value as a process that starts or resumes the run `RUN` does."""
    cfg = Config(dict(visualizer=dict(type='Visualizer')))
    log_to(cfg, name)
    keep_run(cfg, RUN)
    (backend,) = cfg.visualizer.vis_backends
    backend = VISBACKENDS.build(dict(backend, save_dir=str(folder)))
    backend.add_config(cfg)
    backend.add_scalars({'loss': step / 10, 'lr': 0.5}, step=step)
    backend.close()


def test_mlflow_run_continues(tmp_path, monkeypatch):
    mlflow = pytest.importorskip('mlflow')
    monkeypatch.setenv('MLFLOW_TRACKING_URI', f'sqlite:///{tmp_path}/mlflow.db')
    monkeypatch.chdir(tmp_path)
    log('mlflow', tmp_path, 10)
    log('mlflow', tmp_path, 20)
    experiment = mlflow.get_experiment_by_name('mmairl')
    (run,) = mlflow.search_runs([experiment.experiment_id], output_format='list')
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, 'loss')
    assert [(value.step, value.value) for value in history] == [(10, 1.0), (20, 2.0)]


def test_wandb_run_continues(tmp_path, monkeypatch):
    wandb = pytest.importorskip('wandb')
    monkeypatch.setenv('WANDB_MODE', 'offline')
    log('wandb', tmp_path, 10)
    assert wandb.run is None
    log('wandb', tmp_path, 20)
    stored = sorted(tmp_path.rglob('*.wandb'))
    assert [file.stem for file in stored] == [f'run-{RUN}'] * 2
