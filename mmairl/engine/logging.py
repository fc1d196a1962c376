"""Log a run's config and curves to wandb and MLflow, in addition to the files and TensorBoard in its work dir.

mmengine's backends for these services are not used. Its wandb backend counts calls instead of iterations and uploads the code
in the current folder. Its MLflow backend writes to files, which MLflow no longer supports, and ignores MLFLOW_TRACKING_URI.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module  # noqa: TID251  wandb and mlflow by fixed names
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.visualization.vis_backend import BaseVisBackend

from mmairl.config import python_text
from mmairl.engine.checkpoint import settings
from mmairl.errors import UserError, closest, explained
from mmairl.registry import VISBACKENDS

NAMES = {'wandb': 'WandbLogger', 'mlflow': 'MLflowLogger', 'tensorboard': 'TensorboardVisBackend'}
# MLflow stores the id of the training run under this tag.
RUN_TAG = 'mmairl.run'


def log_to(cfg: Config, names: str | Iterable[str]) -> None:
    """Add the loggers with these names to the config, as `--log NAME ...` does."""
    backends = cfg.visualizer.setdefault('vis_backends', [])
    for name in [names] if isinstance(names, str) else names:
        if name not in NAMES:
            raise UserError(
                f"--log: unknown logger ('{name}'){closest(name, NAMES, 0.6)}; use one of {', '.join(NAMES)}",
                code='unknown-logger',
            )
        if not any(backend['type'] == NAMES[name] for backend in backends):
            backends.append(dict(type=NAMES[name]))


def keep_run(cfg: Config, run_id: str | None) -> None:
    """Pass the id of the training run to the loggers, so that wandb and MLflow continue their run with this id."""
    for backend in (cfg.get('visualizer') or {}).get('vis_backends') or []:
        if backend['type'] in (NAMES['wandb'], NAMES['mlflow']):
            backend['run_id'] = run_id


class Service(BaseVisBackend):
    """Base class of loggers that send values to a service. If the service fails during training, training continues.

    A subclass defines `package`, `begin(config)`, `write(values, step)` and `end()`. A resumed training run continues its run
    at the service and sends only iterations that the service does not have yet.

    Args:
        save_dir: Folder for local files of mmengine's loggers, WORK_DIR/TIME/vis_data.
        run_id: Id of the training run, as in its checkpoints. None starts a new run at the service.
        start: Keyword arguments of the call that starts a run at the service.
    """

    package: str

    def __init__(self, save_dir: str, run_id: str | None = None, **start: Any) -> None:
        super().__init__(save_dir)
        self.run_id = run_id
        # The service has the values up to this step from earlier starts of the training run.
        self.last_step = -1
        self.start = start
        self.name = Path(save_dir).parents[1].name
        self.failed = False
        self.run: Any = None

    def _init_env(self) -> None:
        self.client = import_module(self.package)

    @property
    def experiment(self) -> Any:
        """The Python package of the service, for hooks that log more than scalars."""
        return self.client

    def add_config(self, config: Config, **_: Any) -> None:
        advice = "fix the cause (for example, run pip install 'mmairl[log]'), or remove the logger"
        # Each service raises its own errors, for example if an API key is missing or its server does not respond.
        with explained(f'{self.package}: cannot start', advice, code='logger-failed'):
            self._init_env()
            self.begin(config)

    def add_scalar(self, name: str, value: float, step: int = 0, **_: Any) -> None:
        self.add_scalars({name: value}, step)

    def add_scalars(
        self, scalar_dict: Mapping[str, Any], step: int = 0, *_: Any, **__: Any
    ) -> None:
        # After a failure, the service is not called again, because each call might wait for minutes.
        if self.failed or step <= self.last_step:
            return
        with self._continue_without():
            self.write({name: float(value) for name, value in scalar_dict.items()}, step)

    def close(self) -> None:
        # Only the first process has started a run at the service.
        if self.run is not None:
            with self._continue_without():
                self.end()

    @contextmanager
    def _continue_without(self) -> Iterator[None]:
        """Log the first error of the service and ignore later ones, because they must not end a run of several days."""
        try:
            yield
        except Exception as error:
            if not self.failed:
                print_log(
                    f'{self.package} failed, and the run continues without it: {error}',
                    'current',
                    level=30,
                )
            self.failed = True


@VISBACKENDS.register_module()
class WandbLogger(Service):
    """Log to wandb. The environment variable WANDB_PROJECT sets the project; the default is `mmairl`.

    With WANDB_MODE=offline, nothing is sent.

    Args:
        save_dir: Folder for local files of mmengine's loggers, WORK_DIR/TIME/vis_data.
        start: Keyword arguments of `wandb.init`.

    Raises:
        UserError: If wandb does not start.
    """

    package = 'wandb'

    def begin(self, config: Config) -> None:
        options = dict(
            project=os.environ.get('WANDB_PROJECT', 'mmairl'), name=self.name, dir=self._save_dir
        )
        if self.run_id:
            options.update(id=self.run_id, resume='allow')
        options.update(self.start)
        self.run = self.client.init(config=config.to_dict(), **options)
        if self.run.resumed:
            self.last_step = self.run.summary.get('iteration', -1)
        self.run.define_metric('*', step_metric='iteration')

    def write(self, values: dict[str, float], step: int) -> None:
        self.run.log({**values, 'iteration': step})

    def end(self) -> None:
        self.run.finish()


@VISBACKENDS.register_module()
class MLflowLogger(Service):
    """Log to MLflow. The environment variable MLFLOW_TRACKING_URI gives the address of its server.

    MLFLOW_EXPERIMENT_NAME sets the name of the experiment; the default is `mmairl`.

    Args:
        save_dir: Folder for local files of mmengine's loggers, WORK_DIR/TIME/vis_data.
        start: Keyword arguments of `mlflow.start_run`.

    Raises:
        UserError: If MLflow does not start.
    """

    package = 'mlflow'

    def begin(self, config: Config) -> None:
        self.client.set_experiment(os.environ.get('MLFLOW_EXPERIMENT_NAME', 'mmairl'))
        saved = self._saved_run()
        if saved is not None:
            self.run = self.client.start_run(run_id=saved.info.run_id)
            self.last_step = self._last_step(saved)
            return
        tags = {RUN_TAG: self.run_id} if self.run_id else None
        self.run = self.client.start_run(**{'run_name': self.name, 'tags': tags, **self.start})
        self.client.log_params(settings(config))
        self.client.log_text(python_text(config), 'config.py')

    def _saved_run(self) -> Any:
        """Return MLflow's run of an earlier start of this training run, or None if there is none."""
        if not self.run_id:
            return None
        where = f"tags.`{RUN_TAG}` = '{self.run_id}'"
        runs = self.client.search_runs(filter_string=where, max_results=1, output_format='list')
        return runs[0] if runs else None

    def _last_step(self, saved: Any) -> int:
        client = self.client.MlflowClient()
        histories = [
            client.get_metric_history(saved.info.run_id, name) for name in saved.data.metrics
        ]
        return max((metric.step for history in histories for metric in history), default=-1)

    def write(self, values: dict[str, float], step: int) -> None:
        self.client.log_metrics(values, step, run_id=self.run.info.run_id)

    def end(self) -> None:
        self.client.end_run()
