"""Train one run of a study, measure it and write its result: python -m mmairl.study.worker FOLDER

A row of a study is one configuration, usually trained with several seeds. A search tunes a row by trials, which are runs
with different options. A row with its own, unchanged options is called the row as published.
"""

if __name__ == '__main__':
    from mmairl.signals import prepare

    # The imports below take seconds. `prepare` is called first, so that signals are also handled during the imports.
    prepare()

import argparse
import os
import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from mmengine.config import Config
from mmengine.dist import get_world_size, is_main_process

from mmairl.config import load_config
from mmairl.engine.distributed import start_processes
from mmairl.engine.hooks.after_step import accumulated
from mmairl.engine.run import register, train
from mmairl.errors import Diverged, UserError, one_sentence_errors
from mmairl.evaluation.identity import key_of
from mmairl.evaluation.sets import require_apart
from mmairl.evaluation.sources import changed_sources, outside_sources
from mmairl.io import read_json, write_json
from mmairl.signals import AGAIN, stop_processes
from mmairl.study.measure import FEATURES, measure, result_of
from mmairl.study.record_start import RecordStart
from mmairl.study.reuse import (
    create_weights,
    origin,
    take_published,
)
from mmairl.study.schema import Asked, RunResult, Trained, TrainingStart
from mmairl.study.task_names import is_local
from mmairl.study.trials import take_best, wait_for_choice

PATIENCE = 60  # how many seconds to wait until an earlier start of the same run has saved its state and exited


@one_sentence_errors
def run_worker() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        'folder',
        type=Path,
        help='folder of a run, which must contain asked.json and asked/config.yaml',
    )
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm'],
        default='none',
        help='job launcher (default: none)',
    )
    parser.add_argument(
        '--transfer',
        type=int,
        metavar='GPUS',
        help='run only the tasks of tools/transfer.py, each on GPUS GPUs (default: train and run all other tasks)',
    )
    args = parser.parse_args()
    warnings.filterwarnings('ignore')
    register()
    try:
        # Each rank locks a file of its own, so that a second start of the same run is detected with every launcher.
        with FileLock(args.folder / f'.lock_{launched_rank()}', timeout=PATIENCE):
            if args.transfer is None:
                complete_run(args.folder, args.launcher)
            else:
                transfer(args.folder, args.transfer)
    # The wait for the lock times out, for example, if Slurm has requeued a job because it could not reach the job's node,
    # and that node is still executing the job.
    except Timeout:
        print(
            f'error: {args.folder} is locked by another process of this run; start the run again later',
            file=sys.stderr,
        )
        sys.exit(AGAIN)
    stop_processes()


def launched_rank() -> str:
    """Return the rank from the environment variables of the launcher, because there is no process group yet."""
    return os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0'))


def is_first(launcher: str) -> bool:
    return launcher == 'none' or launched_rank() == '0'


def complete_run(folder: Path, launcher: str = 'none') -> None:
    """Complete a run: train or create its weights, measure them by the tasks of tools/evaluate.py, and write result.json.

    Steps that an earlier start has finished are skipped. `measure.measure` measures the weights by one task, and
    `measure.result_of` gathers the content of result.json. `collect.collect` later reads the result.json of every run to
    write study.json, the record of the study.
    """
    asked = read_json(folder / 'asked.json', Asked)
    cfg = load_config(str(folder / 'asked' / 'config.yaml'))
    require_same_sources(cfg, asked, folder)
    if asked.splits:
        require_apart(asked.splits)
    published = apply_choice(cfg, asked, folder, launcher)
    measured = {}
    try:
        prepare_weights(cfg, asked, folder, launcher, published)
        start_processes(launcher)
        for task in filter(is_local, asked.tasks):
            measured[task] = measure(task, folder, asked, launcher)
    except Diverged as error:
        if asked.trial is None:
            raise
        # A diverged trial has no scores and counts as the worst trial of its search.
        if is_main_process():
            write_without_scores(asked, folder, diverged=str(error))
        return
    if is_main_process():
        write_json(folder / 'result.json', result_of(cfg, folder, asked, measured))
        shutil.rmtree(folder / FEATURES, ignore_errors=True)


def require_same_sources(cfg: Config, asked: Asked, folder: Path) -> None:
    """Raise an error if a module that training imports from outside the package has changed since the study was started."""
    if not asked.trains or (folder / 'trained.json').is_file():
        return
    if changed := changed_sources(asked.sources, outside_sources(cfg)):
        raise UserError(
            f'{folder}: {changed} has changed since the study was started; start the study again',
            code='source-changed',
        )


def apply_choice(cfg: Config, asked: Asked, folder: Path, launcher: str) -> Path | None:
    """Add the options of the best trial to the config, if the run is to be trained with them.

    Returns:
        The folder of the run of the row as published, if the best trial used the row's own options. Both
        runs have the same config and seed, so the weights can be copied. In all other cases, None.
    """
    if not asked.chosen:
        return None
    choose = take_best if is_first(launcher) else wait_for_choice
    options = choose(folder, asked.chosen)
    cfg.merge_from_dict(options)
    return None if options else Path(asked.chosen.published)


def write_without_scores(asked: Asked, folder: Path, **reason: Any) -> None:
    """Write the result of a run that counts as finished although it has no scores."""
    labels = {task: task for task in asked.tasks}
    write_json(folder / 'result.json', RunResult(labels=labels, **reason))


def prepare_weights(
    cfg: Config,
    asked: Asked,
    folder: Path,
    launcher: str,
    published: Path | None,
) -> None:
    """Create or train the weights of a run, unless they exist already.

    Args:
        cfg: The run's config, with the options of the best trial if there was a search.
        asked: The request of the planner, which states what to train and measure.
        folder: The run's folder.
        launcher: The launcher.
        published: The folder of a run with the same config and seed, or None. If that run is finished, its weights are
            copied instead of training.
    """
    if asked.untrained:
        return
    # In some cases below, only rank 0 writes files. The other ranks then wait for rank 0 in `start_processes`, which
    # `complete_run` calls next.
    if not asked.trains:
        if is_first(launcher):
            create_weights(cfg, asked, folder)
    elif (folder / 'trained.json').is_file():
        return
    elif published and (published / 'result.json').is_file():
        if is_first(launcher):
            take_published(published, asked, folder)
    else:
        train_row(cfg, asked, folder, launcher)


def train_row(cfg: Config, asked: Asked, folder: Path, launcher: str) -> None:
    """Train a run from its seed, or from its trunk's checkpoint, and write trained.json."""
    cfg.work_dir = str(folder)
    cfg.randomness.seed = asked.seed
    cfg.resume = 'auto'
    start = RecordStart(str(folder / 'start.json'))
    runner = train(cfg, launcher, [start])
    if not is_main_process():
        return
    trained = Trained(
        seconds=start.seconds,
        device_seconds=start.seconds * get_world_size(),
        steps=runner.max_iters // accumulated(runner),
        images_seen=runner.max_iters * runner.train_dataloader.batch_size * get_world_size(),
        start=read_json(folder / 'start.json', TrainingStart),
        made=origin(asked, folder),
        sources=asked.sources,
    )
    write_json(folder / 'trained.json', trained)


def transfer(folder: Path, gpus: int) -> None:
    """Run the tasks that train with mmdet or mmseg, and add their scores to the run's result.

    A task that was interrupted resumes.
    """
    asked = read_json(folder / 'asked.json', Asked)
    result = read_json(folder / 'result.json', RunResult)
    if result.excluded:
        return
    # Only the tasks of tools/transfer.py need this module.
    from mmairl.transfer.execute import (
        Place,
        run_task,
        tune_task,
        write_start,
    )

    place = Place(Path('.').absolute(), folder / f'transfer_{result.sha256[:16]}', gpus)
    start, depth = write_start(str(folder / result.checkpoint), 'student', None, place)
    for task in asked.tasks:
        if is_local(task) or task in result.labels:
            continue
        options = {}
        task_place = place
        if trials := asked.tuned.get(task):
            task_place = replace(place, work_dir=place.work_dir / key_of(dict(trials=trials)))
            options, result.tuned[task] = tune_task(task, start, depth, task_place, trials)
        scores = run_task(task, start, depth, task_place, options)
        result.scores |= scores
        result.labels |= {name: name for name in (task, *scores)}
        write_json(folder / 'result.json', result)


if __name__ == '__main__':
    run_worker()
