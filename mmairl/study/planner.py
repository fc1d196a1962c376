"""Plan the runs of a study, and write each run's config and the request to its worker into the run's folder.

A row of a study is one configuration, usually trained with several seeds. A run's worker is the process that trains and
measures the run. A search tunes a row by trials, which are runs with different options.
"""

import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from mmengine.config import Config
from msgspec.structs import replace

from mmairl.config import config_text
from mmairl.errors import UserError
from mmairl.evaluation.sets import SPLITS, held_out
from mmairl.evaluation.sources import outside_sources
from mmairl.io import read_json, write_json, write_text
from mmairl.registry import PROTOCOLS
from mmairl.study.external import checkpoint_path, require_networks, stated_factors
from mmairl.study.factors import Configs
from mmairl.study.fork_rows import fork_epoch, fork_points
from mmairl.study.measure import forget
from mmairl.study.runs import CONFIG, Run, settle_failed_trials
from mmairl.study.schema import Asked, Branch, Chosen, set_aside
from mmairl.study.search import FIRST, trial_options
from mmairl.study.spec import Row, Study
from mmairl.study.task_names import is_local, is_measured, recipe, trains_classifier
from mmairl.study.trials import trial_counts
from mmairl.transfer.tasks import require_platform


def plan_runs(
    study: Study, configs: Configs, seeds: Sequence[int], tasks: Sequence[str], out: Path
) -> list[Run]:
    """Return the runs of a study without writing to its folder.

    The runs of all rows from the first seed come first, so that every row soon has a result.
    """
    planner = Planner(study, configs, tuple(tasks), out)
    by_seed = map(planner.rows, seeds)
    return list(planner.searches(seeds) if study.search else chain.from_iterable(by_seed))


def prepare_runs(
    study: Study, configs: Configs, seeds: Sequence[int], tasks: Sequence[str], out: Path
) -> list[Run]:
    """Plan the runs, and write each run's config and the request to its worker into the run's folder.

    Raises:
        UserError: If an external checkpoint does not fit its row, if a run was started with another config, or if source
            code that a run uses has changed while the run is active.
    """
    require_networks(study.rows, configs)
    runs = plan_runs(study, configs, seeds, tasks, out)
    changes = {run: run.changed_since_start for run in runs}
    # This loop raises its errors before the next loop moves or writes files.
    for run, change in changes.items():
        if change == CONFIG:
            raise UserError(
                f'{run.folder}: the run was started with another config; set --out to another folder, or remove this folder',
                code='other-config',
            )
    for run, change in changes.items():
        if change:
            set_changed_run_aside(run, change)
        # The config is in the folder `asked`, because mmengine writes another config.yaml into the work dir.
        write_text(run.folder / 'asked' / 'config.yaml', run.config)
        write_json(run.folder / 'asked.json', _with_known_sources(run))
    settle_failed_trials(runs)
    return runs


def set_changed_run_aside(run: Run, change: str) -> None:
    """Move the files of a run whose source code has changed to another folder, so that the run is trained again."""
    if run.is_running:
        raise UserError(
            f'{run.name}: {change} has changed while the run is running; stop the run or wait until it ends, then start the '
            'study again',
            code='source-changed-while-running',
        )
    earlier = set_aside(run.folder)
    print(
        f'{run.name}: {change} has changed; the earlier run was moved to {earlier}', file=sys.stderr
    )


def _with_known_sources(run: Run) -> Asked:
    """Return the request to the worker of a run, with the digests of the source code with which the run began.

    If the run has a checkpoint, the digests are copied from its earlier request, or are None if that request has none. A
    run without a checkpoint begins now, with the current source code.
    """
    path = run.folder / 'asked.json'
    begun = path.is_file() and (run.folder / 'last_checkpoint').is_file()
    return replace(run.asked, sources=read_json(path, Asked).sources) if begun else run.asked


def measure_again(runs: Sequence[Run]) -> None:
    """Remove the scores of finished runs, so that they are measured again. The weights stay."""
    for run in runs:
        if run.is_running:
            raise UserError(
                f'--remeasure: {run.name} is running; stop it, or wait until it ends',
                code='remeasure-running',
            )
    for run in runs:
        (run.folder / 'result.json').unlink(missing_ok=True)
        for task in run.tasks:
            forget(run.folder, task)


@dataclass(frozen=True)
class Planner:
    """Creates the runs of a study.

    Args:
        study: The study.
        configs: The config of each row.
        tasks: The tasks to measure.
        out: The study's folder.
    """

    study: Study
    configs: Configs
    tasks: tuple[str, ...]
    out: Path

    def rows(
        self, seed: int, part: str = 'compared', trials: Mapping[str, Sequence[Run]] = {}
    ) -> Iterator[Run]:
        """Yield the run of each row from one seed.

        Args:
            seed: The seed. In a study with a search, the index of the search.
            part: The role of the runs; see `Run`.
            trials: The trials of each row. If given, a row is trained with the options of its best trial.
        """
        folder = 'tuned' if trials else 'runs'
        # The weights of untrained and external rows do not depend on the study's seeds. The runs of these rows are planned
        # with the first seed: one run of an untrained row, and one run of each checkpoint in the `weights` of an external
        # row, with the seed that `weights` states for the checkpoint.
        first = seed == min(self.study.seeds) and part == 'compared'
        for row in self.study.rows:
            if row.trains or row.others:
                yield self._run(row, seed, folder, part, trials.get(row.name, ()))
            elif first:
                for number in row.weights or [seed]:
                    yield self._run(row, number, folder, part)

    def _run(self, row: Row, seed: int, folder: str, part: str, trials: Sequence[Run] = ()) -> Run:
        cfg = self.configs[row.name]
        tasks = tuple(task for task in self.tasks if is_measured(row.untrained, task))
        rows = {other.name: other for other in self.study.rows}
        sources = {
            role: self._folder(rows[name], seed, folder) for role, name in row.others.items()
        }
        absolute = {role: str(path.absolute()) for role, path in sources.items()}
        chosen = None
        if trials:
            chosen = Chosen(
                tuple(str(trial.folder.absolute()) for trial in trials),
                self.study.search.criterion,
                published=str(self._folder(row, seed).absolute()),
            )
        asked = Asked(
            seed,
            tasks,
            untrained=row.untrained,
            rescaled=row.rescaled and replace(row.rescaled, **absolute),
            along=row.along and replace(row.along, **absolute),
            fork=row.fork and Branch(absolute['of'], fork_epoch(row, self.configs)),
            fork_points=fork_points(row, self.study.rows, self.configs),
            external=checkpoint_path(row, seed) if row.weights else '',
            stated=stated_factors(row),
            chosen=chosen,
            tuned=self._recipe_trials(row, seed),
            sources=outside_sources(cfg) if row.trains else None,
        )
        needs = (*sources.values(), *(trial.folder for trial in trials))
        place = self._folder(row, seed, folder)
        return Run(row, seed, place, tasks, needs, part, asked, config_text(cfg))

    def _folder(self, row: Row, seed: int, folder: str = 'runs') -> Path:
        return self.out / folder / row.slug / f'seed_{seed}'

    def _recipe_trials(self, row: Row, number: int) -> dict[str, tuple[dict[str, Any], ...]]:
        """Return the options of the trials that tune each task's recipe.

        The trials of all rows follow the same Sobol points, so they change each recipe's own values in the same way.
        """
        trials = {}
        for task, tune in self.study.tune.items():
            if task in self.tasks:
                cfg = tunable_recipe(self.configs[row.name], task)
                trials[task] = tuple(trial_options(tune, row, cfg, number, tune.trials))
        return trials

    def searches(self, numbers: Sequence[int]) -> Iterator[Run]:
        """Yield the runs of each search: runs with the rows' own options, trials, and new runs with the best trials' options.

        Only the new runs are compared. The runs with the rows' own options ("as published") equal the runs of the same study
        without `search`, and their seed is the index of the search. Therefore, a finished study keeps its runs if `search` is
        added.
        """
        counts = trial_counts(self.study, self.configs)
        for number in numbers:
            yield from self.rows(number, 'published')
            trials = {}
            for row in self.study.rows:
                if row.trains:
                    trials[row.name] = list(self._trials(row, number, counts[row.name]))
            # The rows take turns, so that an interrupted search has about equally many trials of each row.
            for turn in zip_longest(*trials.values()):
                yield from filter(None, turn)
            yield from self.rows(number, trials=trials)

    def _trials(self, row: Row, number: int, count: int) -> Iterator[Run]:
        """Yield the trials of a row in one search.

        Trials are measured on held-out images: the validation set or, if there is none, a part of the training images. Test
        images therefore do not influence the choice.
        """
        search = self.study.search
        tasks = (search.criterion,)
        cfg = self.configs[row.name]
        splits = {key: value for key, value in cfg.to_dict()['evaluation'].items() if key in SPLITS}
        fit, held = held_out(cfg.evaluation)
        others = {key: value for key, value in cfg.evaluation.items() if key != 'val'}
        for trial, options in enumerate(trial_options(search, row, cfg, number, count)):
            changed = copy.deepcopy(cfg)
            changed.merge_from_dict(options)
            changed.evaluation = copy.deepcopy(dict(others, train=fit, test=held))
            sources = outside_sources(changed)
            asked = Asked(FIRST + number, tasks, trial=options, splits=splits, sources=sources)
            folder = self.out / 'trials' / row.slug / f'search_{number}' / str(trial)
            text = config_text(changed)
            yield Run(row, asked.seed, folder, tasks, (), 'trial', asked, text)


def tunable_recipe(cfg: Config, task: str) -> Config:
    """Return the training config of a task whose recipe is to be tuned.

    Raises:
        UserError: If the task has no held-out images on which trials could be compared.
    """
    if not is_local(task):
        require_platform([task])
    task_config = recipe(cfg, task)
    if not trains_classifier(task) and 'held_out' not in task_config:
        tunable = [name for name in PROTOCOLS.names() if trains_classifier(name)]
        raise UserError(
            f"tune: the task has no held-out images on which to compare trials ('{task}'); tune one of {', '.join(tunable)}, "
            'or a task whose config has `held_out` images',
            code='not-tunable',
        )
    return task_config
