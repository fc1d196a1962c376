"""A run's config and curves in wandb and MLflow, beside the files and TensorBoard in its work dir.

mmengine's own two are left alone: its wandb counts calls where the curves want iterations, and uploads the code of the folder
that a run is started in; its MLflow writes to files, which MLflow takes no more, and passes over MLFLOW_TRACKING_URI.
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

from mmairl.engine.checkpoint import settings
from mmairl.errors import UserError, closest, explained
from mmairl.registry import VISBACKENDS

NAMES = {'wandb': 'WandbLogger', 'mlflow': 'MLflowLogger', 'tensorboard': 'TensorboardVisBackend'}


def log_to(cfg: Config, names: str | Iterable[str]) -> None:
    """Add loggers to those that the config has, for `--log NAME ...`."""
    backends = cfg.visualizer.setdefault('vis_backends', [])
    for name in [names] if isinstance(names, str) else names:
        if name not in NAMES:
            raise UserError(f"there is no logger '{name}'{closest(name, NAMES, 0.6)}; say one of {', '.join(NAMES)}")
        if not any(backend['type'] == NAMES[name] for backend in backends):
            backends.append(dict(type=NAMES[name]))


class Service(BaseVisBackend):
    """A service that begins with the config. If it fails later on, the run goes on without it.

    Each has `begin(config)`, `write(values, step)` and `end()`. `start` is passed on to the call that begins a run there. A
    resumed run is a new one there, of the same name, and its iterations go on.
    """

    package: str

    def __init__(self, save_dir: str, **start: Any) -> None:
        super().__init__(save_dir)
        self.start, self.name, self.failed = start, Path(save_dir).parents[1].name, False
        self.run: Any = None

    def _init_env(self) -> None:
        self.client = import_module(self.package)

    @property
    def experiment(self) -> Any:
        """The package, for what a hook of yours has to say to it."""
        return self.client

    def add_config(self, config: Config, **_: Any) -> None:
        said, then = f'{self.package} does not start', "mend that, as by pip install 'mmairl[log]', or leave it out"
        with explained(said, then):  # each has its own errors: no key, no server, a name that is taken
            self._init_env()
            self.begin(config)

    def add_scalar(self, name: str, value: float, step: int = 0, **_: Any) -> None:
        self.add_scalars({name: value}, step)

    def add_scalars(self, scalar_dict: Mapping[str, Any], step: int = 0, *_: Any, **__: Any) -> None:
        if self.failed:  # each call might wait for minutes
            return
        with self.or_without():
            self.write({name: float(value) for name, value in scalar_dict.items()}, step)

    def close(self) -> None:
        if self.run is not None:  # the first process alone has begun
            with self.or_without():
                self.end()

    @contextmanager
    def or_without(self) -> Iterator[None]:
        """A server that is gone must not end a run of days."""
        try:
            yield
        except Exception as error:
            if not self.failed:
                print_log(f'{self.package} fails, and the run goes on without it: {error}', logger='current', level=30)
            self.failed = True


@VISBACKENDS.register_module()
class WandbLogger(Service):
    """wandb, by the project WANDB_PROJECT or `mmairl`; WANDB_MODE=offline sends nothing."""

    package = 'wandb'

    def begin(self, config: Config) -> None:
        own = dict(project=os.environ.get('WANDB_PROJECT', 'mmairl'), name=self.name, dir=self._save_dir)
        self.run = self.client.init(config=config.to_dict(), **{**own, **self.start})
        self.run.define_metric('*', step_metric='iteration')

    def write(self, values: dict[str, float], step: int) -> None:
        self.run.log({**values, 'iteration': step})

    def end(self) -> None:
        self.run.finish()


@VISBACKENDS.register_module()
class MLflowLogger(Service):
    """MLflow, at MLFLOW_TRACKING_URI or its own default; the experiment is MLFLOW_EXPERIMENT_NAME or `mmairl`."""

    package = 'mlflow'

    def begin(self, config: Config) -> None:
        self.client.set_experiment(os.environ.get('MLFLOW_EXPERIMENT_NAME', 'mmairl'))
        self.run = self.client.start_run(**{'run_name': self.name, **self.start})
        self.client.log_params(settings(config))
        self.client.log_text(config.pretty_text, 'config.py')

    def write(self, values: dict[str, float], step: int) -> None:
        self.client.log_metrics(values, step, run_id=self.run.info.run_id)

    def end(self) -> None:
        self.client.end_run()
