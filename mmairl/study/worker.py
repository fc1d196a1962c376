"""One run of a study: train (or go on), measure, and leave a result. python -m mmairl.study.worker FOLDER"""

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
from mmairl.study.measure import FEATURES, is_local, measure, result_of
from mmairl.study.record_start import RecordStart
from mmairl.study.reuse import derive, origin, take_published
from mmairl.study.schema import Asked, Result, Start, Trained
from mmairl.study.trials import take_best, wait_for_choice

PATIENCE = 60  # seconds that the next start of a run waits for one that is stopping, and saving


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('folder', type=Path, help='as tools/study.py lays it out: asked.json and asked/config.yaml')
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm'], default='none')
    parser.add_argument(
        '--transfer', type=int, metavar='GPUS', help='the tasks of tools/transfer.py, each by so many GPUs'
    )
    args = parser.parse_args()
    warnings.filterwarnings('ignore')
    register()
    try:
        # One lock for each rank, so that two starts of one run meet whatever launched them.
        with FileLock(args.folder / f'.lock_{rank_told()}', timeout=PATIENCE):
            if args.transfer is None:
                run(args.folder, args.launcher)
            else:
                transfer(args.folder, args.transfer)
    except Timeout:  # such as a job that was requeued while a node that cannot be reached still runs it
        print(f'error: another process is working on {args.folder}; start this again later', file=sys.stderr)
        sys.exit(AGAIN)
    stop_processes()


def rank_told() -> str:
    """This process's number as its launcher says it, before there is a group."""
    return os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0'))


def run(folder: Path, launcher: str = 'none') -> None:
    """Train what is not trained, measure what is not measured."""
    asked, trained = read_json(folder / 'asked.json', Asked), folder / 'trained.json'
    cfg = load_config(str(folder / 'asked' / 'config.yaml'))
    published = None
    if asked.trains and not trained.is_file() and (changed := changed_sources(asked.sources, outside_sources(cfg))):
        raise UserError(
            f'{folder}: {changed} has changed since the study was started; start the study again',
            code='source-changed',
        )
    if asked.splits:
        require_apart(asked.splits)
    if asked.chosen:
        choose = take_best if launcher == 'none' or rank_told() == '0' else wait_for_choice
        cfg.merge_from_dict(options := choose(folder, asked.chosen))
        published = None if options else Path(asked.chosen.published)
    try:
        if asked.rescaled or asked.along or asked.given:
            if launcher == 'none' or rank_told() == '0':  # the others wait where they meet
                derive(cfg, asked, folder)
        elif not (asked.untrained or trained.is_file()):
            # of the same config and seed, training would say it again
            if published and (published / 'result.json').is_file():
                if launcher == 'none' or rank_told() == '0':
                    take_published(published, asked, folder)
            else:
                train_row(cfg, asked, folder, launcher)
        start_processes(launcher)
        measured = {task: measure(task, folder, asked, launcher) for task in asked.tasks if is_local(task)}
    except Diverged as error:
        if asked.trial is None:
            raise
        if is_main_process():
            labels = {task: task for task in asked.tasks}
            write_json(folder / 'result.json', Result(labels=labels, diverged=str(error)))
        return
    if is_main_process():
        write_json(folder / 'result.json', result_of(cfg, folder, asked, measured))
        shutil.rmtree(folder / FEATURES, ignore_errors=True)


def train_row(cfg: Config, asked: Asked, folder: Path, launcher: str) -> None:
    """Train the row from its seed, and leave how long it took and what it started from."""
    cfg.work_dir, cfg.randomness.seed, cfg.resume = str(folder), asked.seed, 'auto'
    hook = dict(type=RecordStart.__name__, path=str(folder / 'start.json'))
    cfg.custom_hooks = [*cfg.get('custom_hooks', []), hook]
    runner = train(cfg, launcher)
    seconds = next(hook.seconds for hook in runner.hooks if isinstance(hook, RecordStart))
    if is_main_process():
        trained = Trained(
            seconds=seconds,
            device_seconds=seconds * get_world_size(),
            steps=runner.max_iters // runner.optim_wrapper.accumulated,
            images_seen=runner.max_iters * runner.train_dataloader.batch_size * get_world_size(),
            start=read_json(folder / 'start.json', Start),
            made=origin(asked, folder),
            sources=asked.sources,
        )
        write_json(folder / 'trained.json', trained)


def transfer(folder: Path, gpus: int) -> None:
    """Add the tasks on mmdet and mmseg to the run's result; each is resumed and kept in a folder of its own."""
    from mmairl.transfer.execute import Place, prepare, run_task, tune_task  # needs the platforms

    asked, result = read_json(folder / 'asked.json', Asked), read_json(folder / 'result.json', Result)
    place = Place(Path('.').absolute(), folder / f'transfer_{result.sha256[:16]}', gpus)
    start, depth = prepare(str(folder / result.checkpoint), 'student', None, place)
    for task in asked.tasks:
        if not is_local(task) and task not in result.labels:
            options, at = {}, place
            if trials := asked.tuned.get(task):
                at = replace(place, work_dir=place.work_dir / key_of(dict(trials=trials)))
                options, result.tuned[task] = tune_task(task, start, depth, at, trials)
            scores = run_task(task, start, depth, at, options)
            result.scores.update(scores)
            result.labels.update({task: task, **{name: name for name in scores}})
            write_json(folder / 'result.json', result)


if __name__ == '__main__':
    main()
