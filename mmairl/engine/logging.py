"""Log a run to wandb and MLflow by mmengine's backends. A resumed run continues its run at the service.

mmengine's wandb backend counts calls instead of iterations. Its MLflow backend ignores MLFLOW_TRACKING_URI.
"""

import os
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from mmengine.config import Config
from mmengine.visualization.vis_backend import MLflowVisBackend, WandbVisBackend

from mmairl.errors import UserError
from mmairl.registry import VISBACKENDS

NAMES = {'wandb': 'WandbLogger', 'mlflow': 'MLflowLogger', 'tensorboard': 'TensorboardVisBackend'}
# MLflow stores the id of the training run under this tag.
RUN_TAG = 'mmairl.run'


def log_to(cfg: Config, names: str | Iterable[str]) -> None:
    """Add the loggers with these names to the config, as `--log NAME ...` does."""
    visualizer = {'type': 'Visualizer', **(cfg.get('visualizer') or {})}
    backends = list(visualizer.get('vis_backends') or [])
    for name in [names] if isinstance(names, str) else names:
        if name not in NAMES or find_spec(name) is None:
            raise UserError(
                f"--log: no such logger, or it is not installed ('{name}'); use one of {', '.join(NAMES)}, or run pip "
                f'install {name}',
                code='unknown-logger',
            )
        if not any(backend['type'] == NAMES[name] for backend in backends):
            backends.append(dict(type=NAMES[name]))
    cfg.visualizer = {**visualizer, 'vis_backends': backends}


def keep_run(cfg: Config, run_id: str) -> None:
    """Pass the id of the training run to the loggers, so that wandb and MLflow continue their run with this id."""
    for backend in (cfg.get('visualizer') or {}).get('vis_backends') or []:
        if backend['type'] in (NAMES['wandb'], NAMES['mlflow']):
            backend['run_id'] = run_id


@VISBACKENDS.register_module()
class WandbLogger(WandbVisBackend):
    """mmengine's wandb backend, which also logs the iteration of each value.

    The environment variable WANDB_PROJECT sets the project; the default is `mmairl`.

    Args:
        save_dir: Folder for local files, WORK_DIR/TIME/vis_data.
        run_id: Id of the training run, as in its checkpoints.
    """

    def __init__(self, save_dir: str, run_id: str | None = None) -> None:
        project = os.environ.get('WANDB_PROJECT', 'mmairl')
        every_metric = [dict(name='*', step_metric='iteration')]
        super().__init__(save_dir, dict(project=project, id=run_id, resume='allow'), every_metric)

    def add_config(self, config: Config, **_: Any) -> None:
        # mmengine's method would also upload the code in the current folder.
        self.experiment.config.update(config.to_dict(), allow_val_change=True)

    def add_scalars(self, scalar_dict: dict[str, Any], step: int = 0, *_: Any, **__: Any) -> None:
        self.experiment.log({**scalar_dict, 'iteration': step})


@VISBACKENDS.register_module()
class MLflowLogger(MLflowVisBackend):
    """mmengine's MLflow backend, which also continues the run of a resumed training run.

    The environment variables MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME set the address of the server and the experiment.

    Args:
        save_dir: Folder for local files, WORK_DIR/TIME/vis_data.
        run_id: Id of the training run, as in its checkpoints.
    """

    def __init__(self, save_dir: str, run_id: str | None = None) -> None:
        super().__init__(save_dir)
        self.run_id = run_id

    def _init_env(self) -> None:
        import mlflow

        self._mlflow = mlflow
        mlflow.set_experiment(os.environ.get('MLFLOW_EXPERIMENT_NAME', 'mmairl'))
        where = f"tags.`{RUN_TAG}` = '{self.run_id}'"
        stored = mlflow.search_runs(filter_string=where, output_format='list')
        mlflow.start_run(stored[0].info.run_id if stored else None)
        mlflow.set_tag(RUN_TAG, self.run_id)

    def add_config(self, config: Config, **_: Any) -> None:
        self.experiment.log_text(config.pretty_text, 'config.py')

    def close(self) -> None:
        if hasattr(self, '_mlflow'):
            self._mlflow.end_run()
