"""Train one run of a study, measure it and write its result: python -m mmairl.study.worker FOLDER"""

if __name__ == '__main__':
    from mmairl.startup import prepare

    prepare()  # handles signals during the imports below, which take seconds

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
from mmairl.engine.fork import Fork, collapse_before
from mmairl.engine.run import register, train
from mmairl.errors import Diverged, UserError, one_sentence_errors
from mmairl.evaluation.identity import difference, key_of
from mmairl.evaluation.sets import require_apart
from mmairl.evaluation.sources import changed_sources, outside_sources
from mmairl.io import read_json, write_json
from mmairl.signals import AGAIN, stop_processes
from mmairl.study.fork_rows import KeepForkPoints
from mmairl.study.measure import FEATURES, measure, result_of
from mmairl.study.record_start import RecordStart
from mmairl.study.reuse import (
    create_weights,
    fork_checkpoint,
    origin,
    require_finished,
    take_published,
)
from mmairl.study.schema import Asked, Branch, RunResult, Trained, TrainingStart
from mmairl.study.task_names import is_local
from mmairl.study.trials import take_best, wait_for_choice

PATIENCE = 60  # seconds to wait for an earlier start of the same run to save its state and exit


@one_sentence_errors
def run_worker() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        'folder', type=Path, help='run folder of a study, with asked.json and asked/config.yaml'
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
        help='run the tasks of tools/transfer.py, each on GPUS GPUs',
    )
    args = parser.parse_args()
    warnings.filterwarnings('ignore')
    register()
    try:
        # Each rank locks its own file, so a second start of the run is detected under any launcher.
        with FileLock(args.folder / f'.lock_{launched_rank()}', timeout=PATIENCE):
            if args.transfer is None:
                complete_run(args.folder, args.launcher)
            else:
                transfer(args.folder, args.transfer)
    except Timeout:  # e.g. a requeued job while an unreachable node still runs the first one
        print(
            f'error: {args.folder} is locked by another process; start the run again later',
            file=sys.stderr,
        )
        sys.exit(AGAIN)
    stop_processes()


def launched_rank() -> str:
    """Return the rank that the launcher set in the environment; there is no process group yet."""
    return os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0'))


def is_first(launcher: str) -> bool:
    return launcher == 'none' or launched_rank() == '0'


def complete_run(folder: Path, launcher: str = 'none') -> None:
    """Train and measure what is missing of a run, and write its result.

    The weights are trained or created first. `measure.measure` then scores them by each task, and `measure.result_of`
    gathers result.json, from which `collect.collect` makes the record of the study.
    """
    asked = read_json(folder / 'asked.json', Asked)
    cfg = load_config(str(folder / 'asked' / 'config.yaml'))
    require_same_sources(cfg, asked, folder)
    if asked.splits:
        require_apart(asked.splits)
    published = apply_choice(cfg, asked, folder, launcher)
    if asked.fork and (reason := reason_to_exclude(asked.fork, folder)):
        if is_first(launcher):
            write_without_scores(asked, folder, made=origin(asked, folder), excluded=reason)
        return
    measured = {}
    try:
        prepare_weights(cfg, asked, folder, launcher, published)
        start_processes(launcher)
        for task in filter(is_local, asked.tasks):
            measured[task] = measure(task, folder, asked, launcher)
    except Diverged as error:
        if asked.trial is None:
            raise
        if is_main_process():  # a diverged trial counts as the worst one
            write_without_scores(asked, folder, diverged=str(error))
        return
    if is_main_process():
        write_json(folder / 'result.json', result_of(cfg, folder, asked, measured))
        shutil.rmtree(folder / FEATURES, ignore_errors=True)


def require_same_sources(cfg: Config, asked: Asked, folder: Path) -> None:
    """Raise if modules outside the package that training imports have changed since the study was started."""
    if not asked.trains or (folder / 'trained.json').is_file():
        return
    if changed := changed_sources(asked.sources, outside_sources(cfg)):
        raise UserError(
            f'{folder}: {changed} has changed since the study was started; start the study again',
            code='source-changed',
        )


def apply_choice(cfg: Config, asked: Asked, folder: Path, launcher: str) -> Path | None:
    """Set the options of the best trial in the config.

    If the best trial is the row as published, return the folder of that row's run, which has the same config and seed.
    """
    if not asked.chosen:
        return None
    choose = take_best if is_first(launcher) else wait_for_choice
    options = choose(folder, asked.chosen)
    cfg.merge_from_dict(options)
    return None if options else Path(asked.chosen.published)


def reason_to_exclude(branch: Branch, folder: Path) -> str:
    """Return why a branch is not trained: its trunk had collapsed before the fork point; '' if it had not."""
    trunk = Path(branch.trunk)
    require_finished(folder, trunk)
    if (folder / 'trained.json').is_file():
        return ''
    _, checkpoint = fork_of(branch).checkpoint()
    reason = collapse_before(trunk, checkpoint['meta']['iter'])
    return reason and f'the trunk had collapsed before epoch {branch.epoch}: {reason}'


def fork_of(branch: Branch) -> Fork:
    path = fork_checkpoint(branch)
    return Fork(Path(branch.trunk), branch.epoch, path if path.is_file() else None)


def write_without_scores(asked: Asked, folder: Path, **reason: Any) -> None:
    """Write the result of a run that counts as finished and has no scores."""
    labels = {task: task for task in asked.tasks}
    write_json(folder / 'result.json', RunResult(labels=labels, **reason))


def prepare_weights(
    cfg: Config,
    asked: Asked,
    folder: Path,
    launcher: str,
    published: Path | None,
) -> None:
    """Create or train the weights of a run, unless they exist."""
    if asked.untrained:
        return
    # Where only rank 0 writes files, the other ranks wait for it in `start_processes`.
    if not asked.trains:
        if is_first(launcher):
            create_weights(cfg, asked, folder)
    elif (folder / 'trained.json').is_file():
        if asked.fork:
            require_same_trunk(asked, folder)
    elif published and (published / 'result.json').is_file():
        if is_first(launcher):
            take_published(published, asked, folder)
    else:
        train_row(cfg, asked, folder, launcher)


def require_same_trunk(asked: Asked, folder: Path) -> None:
    """Raise if the trunk's checkpoint has changed since the branch was trained."""
    made = read_json(folder / 'trained.json', Trained).made
    if changed := difference(made, origin(asked, folder)):
        raise UserError(
            f'{folder}: the trunk has changed since this branch was trained ({changed}); remove the folder to train it again',
            code='trunk-changed',
        )


def train_row(cfg: Config, asked: Asked, folder: Path, launcher: str) -> None:
    """Train from the seed, or from the trunk's checkpoint, and write trained.json."""
    cfg.work_dir = str(folder)
    cfg.randomness.seed = asked.seed
    cfg.resume = 'auto'
    start = RecordStart(str(folder / 'start.json'))
    fork = fork_of(asked.fork) if asked.fork else None
    runner = train(cfg, launcher, fork, [start, KeepForkPoints(asked.fork_points)])
    if not is_main_process():
        return
    began_in = Path(asked.fork.trunk) if asked.fork else folder
    trained = Trained(
        seconds=start.seconds,
        device_seconds=start.seconds * get_world_size(),
        steps=runner.max_iters // runner.optim_wrapper.accumulated,
        images_seen=runner.max_iters * runner.train_dataloader.batch_size * get_world_size(),
        start=read_json(began_in / 'start.json', TrainingStart),
        made=origin(asked, folder),
        sources=asked.sources,
    )
    write_json(folder / 'trained.json', trained)


def transfer(folder: Path, gpus: int) -> None:
    """Run the tasks on mmdet and mmseg, and add their scores to the run's result.

    Each task resumes in its own folder, which is named after the checkpoint.
    """
    asked = read_json(folder / 'asked.json', Asked)
    result = read_json(folder / 'result.json', RunResult)
    if result.excluded:
        return
    from mmairl.transfer.execute import (  # requires mmdet and mmseg
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
