"""Choose a network without labels, by a measure that has chosen well in an earlier study.

python -m projects.label_free.choose trials FOLDER... [--record STUDY.JSON]
    choose the best of these finished trials of a study (folders with result.json)
python -m projects.label_free.choose checkpoints WORK_DIR --config CONFIG [--record STUDY.JSON]
    choose the best of the checkpoints epoch_*.pth of a run

The record is the study.json of a study with `analyses: [projects.label_free.networks]`, or the output of
projects.label_free.pool. The default is regret.json in this project, the record of a small study. In this record, no measure is
trusted to choose trials or checkpoints, so both commands end with an error without --record.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from mmengine.config import Config

from mmairl.analysis.measures import training_loss
from mmairl.checkpoints.load import load_checkpoint
from mmairl.config import load_config
from mmairl.engine.run import register
from mmairl.errors import UserError, one_sentence_errors
from mmairl.io import read_json
from mmairl.study.schema import RunResult
from projects.label_free.extra_measures import MEASURES
from projects.label_free.trusted import EPOCHS, RECORD, SETTINGS, trusted
from projects.label_free.unlabelled import goodness_of, measure_checkpoint, measured_run


def goodness_of_trials(folders: Sequence[Path], measure: str) -> list[float]:
    """Return how good each finished trial is by a measure. Higher is better, and trials that diverged have -inf."""
    networks = {}
    for folder in folders:
        diverged = read_json(folder / 'result.json', RunResult).diverged
        networks[folder] = (
            dict.fromkeys(MEASURES, math.nan) if diverged else measured_run(folder).numbers
        )
    return goodness_of(measure, networks)


def goodness_of_checkpoints(checkpoints: Sequence[Path], cfg: Config, measure: str) -> list[float]:
    """Return how good each checkpoint of a run is by a measure on the training images of the run. Higher is better."""
    views = cfg.train_dataloader.dataset.views
    size = max(step['size'] for view in views for step in view if 'size' in step)
    center = [dict(type='Resize', size=round(size * 8 / 7)), dict(type='CenterCrop', size=size)]
    cfg.evaluation = dict(train={**cfg.train_dataloader.dataset, 'views': [center]})
    networks = {}
    for path in checkpoints:
        loss = training_loss(path.parent, load_checkpoint(path)['meta']['iter'])
        networks[path] = measure_checkpoint(path, cfg, loss)
    return goodness_of(measure, networks)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('among', choices=['trials', 'checkpoints'])
    parser.add_argument('folders', nargs='+', type=Path, metavar='FOLDER')
    parser.add_argument('--config', help='checkpoints: read the config of the run (required)')
    parser.add_argument(
        '--record',
        type=Path,
        default=RECORD,
        help='read the verdicts on measures from this study.json (default: the record in this project)',
    )
    return parser.parse_args()


@one_sentence_errors
def main() -> None:
    args = parse_args()
    register()
    if args.among == 'trials':
        measure, reason = trusted(SETTINGS, args.record)
        paths = args.folders
        goodness = goodness_of_trials(paths, measure)
    else:
        if not args.config:
            raise UserError(
                '--config: required for checkpoints; name the config of the run', code='no-config'
            )
        measure, reason = trusted(EPOCHS, args.record)
        paths = sorted(path for folder in args.folders for path in folder.glob('epoch_*.pth'))
        if not paths:
            raise UserError(
                f"no checkpoints epoch_*.pth ('{args.folders[0]}'); check the path",
                code='no-checkpoints',
            )
        goodness = goodness_of_checkpoints(paths, load_config(args.config), measure)
    print(reason)
    print(paths[goodness.index(max(goodness))])


if __name__ == '__main__':
    main()
