"""Train one run of a study, measure it and write its result: python -m mmairl.study.worker FOLDER"""

if __name__ == '__main__':
    from mmairl.startup import prepare

    prepare()  # before the imports below, which take seconds

import argparse
import os
import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout
from mmengine.config import Config
from mmengine.dist import get_world_size, is_main_process

from mmairl.config import load_config
from mmairl.engine.distributed import start_processes
from mmairl.engine.run import register, train
from mmairl.errors import Diverged, UserError, one_sentence_errors
from mmairl.evaluation.identity import key_of
from mmairl.evaluation.sets import require_apart
from mmairl.evaluation.sources import changed_sources, outside_sources
from mmairl.io import read_json, write_json
from mmairl.signals import AGAIN, stop_processes
from mmairl.study.measure import FEATURES, measure, result_of
from mmairl.study.record_start import RecordStart
from mmairl.study.reuse import create_weights, origin, take_published
from mmairl.study.schema import Asked, RunResult, Trained, TrainingStart
from mmairl.study.task_names import is_local
from mmairl.study.trials import take_best, wait_for_choice

PATIENCE = 60  # seconds to wait for an earlier start of the run that is saving and stopping


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
        # Each rank has its own lock, so that two starts of one run collide however they were launched.
        with FileLock(args.folder / f'.lock_{launched_rank()}', timeout=PATIENCE):
            if args.transfer is None:
                complete_run(args.folder, args.launcher)
            else:
                transfer(args.folder, args.transfer)
    except Timeout:  # e.g. a requeued job, while an unreachable node still runs the first one
        print(
            f'error: {args.folder} is locked by another process; start this again later',
            file=sys.stderr,
        )
        sys.exit(AGAIN)
    stop_processes()


def launched_rank() -> str:
    """Return this process's rank as its launcher states it, before a process group exists."""
    return os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0'))


def is_first(launcher: str) -> bool:
    return launcher == 'none' or launched_rank() == '0'


def complete_run(folder: Path, launcher: str = 'none') -> None:
    """Train the run if it is not trained, measure what is not measured, and write its result."""
    asked = read_json(folder / 'asked.json', Asked)
    cfg = load_config(str(folder / 'asked' / 'config.yaml'))
    require_same_sources(cfg, asked, folder)
    if asked.splits:
        require_apart(asked.splits)
    published = apply_choice(cfg, asked, folder, launcher)
    try:
        prepare_weights(cfg, asked, folder, launcher, published)
        start_processes(launcher)
        measured = {
            task: measure(task, folder, asked, launcher) for task in asked.tasks if is_local(task)
        }
    except Diverged as error:
        if asked.trial is None:
            raise
        result = RunResult(labels={task: task for task in asked.tasks}, diverged=str(error))
        if is_main_process():
            write_json(folder / 'result.json', result)
        return
    if is_main_process():
        write_json(folder / 'result.json', result_of(cfg, folder, asked, measured))
        shutil.rmtree(folder / FEATURES, ignore_errors=True)


def require_same_sources(cfg: Config, asked: Asked, folder: Path) -> None:
    """Raise if training would use other source code than the study was started with."""
    if not asked.trains or (folder / 'trained.json').is_file():
        return
    if changed := changed_sources(asked.sources, outside_sources(cfg)):
        raise UserError(
            f'{folder}: {changed} has changed since the study was started; start the study again',
            code='source-changed',
        )


def apply_choice(cfg: Config, asked: Asked, folder: Path, launcher: str) -> Path | None:
    """Set the options of the best trial; if that is the row as published, return the folder of its run."""
    if not asked.chosen:
        return None
    choose = take_best if is_first(launcher) else wait_for_choice
    options = choose(folder, asked.chosen)
    cfg.merge_from_dict(options)
    return None if options else Path(asked.chosen.published)


def prepare_weights(
    cfg: Config, asked: Asked, folder: Path, launcher: str, published: Path | None
) -> None:
    """Create or train the weights of a run, unless they exist."""
    if asked.rescaled or asked.along or asked.external:
        if is_first(launcher):  # the other ranks wait for it in `start_processes`
            create_weights(cfg, asked, folder)
        return
    if asked.untrained or (folder / 'trained.json').is_file():
        return
    if (
        published and (published / 'result.json').is_file()
    ):  # the same config and seed would train the same weights
        if is_first(launcher):
            take_published(published, asked, folder)
        return
    train_row(cfg, asked, folder, launcher)


def train_row(cfg: Config, asked: Asked, folder: Path, launcher: str) -> None:
    """Train the row from its seed, and write how long that took and what it started from."""
    cfg.work_dir = str(folder)
    cfg.randomness.seed = asked.seed
    cfg.resume = 'auto'
    hook = dict(type=RecordStart.__name__, path=str(folder / 'start.json'))
    cfg.custom_hooks = [*cfg.get('custom_hooks', []), hook]
    runner = train(cfg, launcher)
    if not is_main_process():
        return
    seconds = next(hook.seconds for hook in runner.hooks if isinstance(hook, RecordStart))
    trained = Trained(
        seconds=seconds,
        device_seconds=seconds * get_world_size(),
        steps=runner.max_iters // runner.optim_wrapper.accumulated,
        images_seen=runner.max_iters * runner.train_dataloader.batch_size * get_world_size(),
        start=read_json(folder / 'start.json', TrainingStart),
        made=origin(asked, folder),
        sources=asked.sources,
    )
    write_json(folder / 'trained.json', trained)


def transfer(folder: Path, gpus: int) -> None:
    """Add the tasks on mmdet and mmseg to the run's result; each has a folder of its own and is resumed there."""
    from mmairl.transfer.execute import (
        Place,
        run_task,
        tune_task,
        write_start,
    )  # requires the platforms

    asked = read_json(folder / 'asked.json', Asked)
    result = read_json(folder / 'result.json', RunResult)
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
        result.scores.update(scores)
        result.labels.update({task: task, **{name: name for name in scores}})
        write_json(folder / 'result.json', result)


if __name__ == '__main__':
    run_worker()
