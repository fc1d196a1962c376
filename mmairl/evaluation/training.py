"""Linear evaluation and fine-tuning: one run of a recipe, or a search on held-out images and then the chosen run.

Each run lives in a folder of its own and is finished, continued or refused by what that folder holds, so that a killed
evaluation goes on where it was.
"""

import copy
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from mmengine import Config
from mmengine.dist import barrier, is_main_process
from mmengine.logging import print_log

from mmairl.engine.launch import train
from mmairl.errors import UserError
from mmairl.evaluation.compose import compose
from mmairl.files import replacing

Scores = dict[str, float]
Measure = Callable[..., Scores]  # of a recipe, training and test data, and the run's folder
RUNS = itertools.count()


def train_and_test(
    cfg: Config, recipe: Config, start: dict | None, work_dir: Path, sweep: bool, workers: int, launcher: str
) -> tuple[Scores, dict]:
    """Scores on the test set, and what was chosen on the way to them."""

    def measure(recipe: Config, train_data: dict, test_data: dict, name: str = '') -> Scores:
        return run(compose(cfg, recipe, train_data, test_data, start, work_dir / name, workers), launcher)

    data = cfg.evaluation
    if sweep:
        return _sweep(measure, recipe, data)
    if recipe.get('grid'):
        return _search(measure, recipe, data)
    return measure(recipe, refit(data), data.test), {}


def run(cfg: Config, launcher: str) -> Scores:
    """Train and test one config in its folder; a folder with scores is done, one with checkpoints is gone on with."""
    folder = Path(cfg.work_dir)
    done, asked = folder / 'scores.json', folder / 'asked.json'
    wanted = json.dumps(cfg.to_dict(), sort_keys=True, default=str)
    if asked.is_file() and asked.read_text() != wanted:
        raise UserError(f'{folder} holds another evaluation; give --work-dir another folder or remove this one')
    if done.is_file():
        print_log(f'{folder} is finished; remove it to measure again', logger='current')
        return json.loads(done.read_text())
    if is_main_process():
        with replacing(asked) as beside:
            beside.write_text(wanted)
    cfg.resume = (folder / 'last_checkpoint').is_file()
    # mmengine keeps one visualizer and log a name, and its own names differ by the second
    cfg.experiment_name = f'{folder.name}_{next(RUNS)}'
    scores = train(cfg, launcher).test()
    scores = {name.removeprefix('/'): value for name, value in scores.items()}
    if is_main_process():
        with replacing(done) as beside:
            beside.write_text(json.dumps(scores))
    barrier()
    return scores


def _sweep(measure: Measure, recipe: Config, data: dict) -> tuple[Scores, dict]:
    """Every pair of the recipe's rates and decays as a head of its own, in one pass; the best is then tested."""
    optimizer = recipe.optim_wrapper.optimizer
    if optimizer.type != 'SGD' or not recipe.model.get('frozen'):
        raise UserError('--sweep trains many heads on one frozen backbone by SGD; use a recipe for linear evaluation')
    pairs = list(itertools.product(recipe.sweep.lr, recipe.sweep.weight_decay))
    rates, decays = (list(column) for column in zip(*pairs))
    many = copy.deepcopy(recipe)
    many.model.heads = len(pairs)
    many.optim_wrapper.optimizer = dict(
        type='HeadSGD',
        lr=1.0,
        rates=rates,
        decays=decays,
        momentum=optimizer.momentum,
        nesterov=optimizer.get('nesterov', False),
    )
    on_held = measure(many, *held_out(data), 'sweep')
    name = first_score(on_held)
    tried = [on_held[f'{name}@{head}' if len(pairs) > 1 else name] for head in range(len(pairs))]
    rate, decay = pairs[tried.index(max(tried))]
    chosen = copy.deepcopy(recipe)
    chosen.optim_wrapper.optimizer.update(lr=rate, weight_decay=decay)
    table = [dict(lr=lr, weight_decay=wd, score=score) for (lr, wd), score in zip(pairs, tried)]
    return measure(chosen, refit(data), data.test, 'test'), dict(lr=rate, weight_decay=decay, held_out=table)


def _search(measure: Measure, recipe: Config, data: dict) -> tuple[Scores, dict]:
    """The recipe once for every point of its grid on held-out images, then once more on all with the best."""
    tried: dict[str, float] = {}
    made = dict(points(recipe))
    for name, point in made.items():
        scores = measure(point, *held_out(data), name)
        tried[name] = scores[first_score(scores)]
        print_log(f'{name}: {tried[name]:.2f} on held-out images', logger='current')
    best = max(tried, key=tried.get)
    return measure(made[best], refit(data), data.test, 'test'), dict(chosen=best, held_out=tried)


def points(recipe: Config) -> Iterator[tuple[str, Config]]:
    """A name and the recipe for each point of `recipe.grid`, over lr, weight_decay and epochs."""
    grid = dict(recipe.grid)
    divide = grid.pop('divide_decay_by_lr', False)
    for values in itertools.product(*grid.values()):
        point, made = dict(zip(grid, values)), copy.deepcopy(recipe)
        if 'lr' in point:
            made.optim_wrapper.optimizer.lr = point['lr']
        if 'weight_decay' in point:
            made.optim_wrapper.optimizer.weight_decay = point['weight_decay'] / (point['lr'] if divide else 1)
        if 'epochs' in point:
            made.train_cfg.max_epochs = point['epochs']
            for scheduler in made.param_scheduler:
                scheduler.end = point['epochs']
        yield '_'.join(f'{key}{value:.3g}' for key, value in point.items()), made


def held_out(data: dict) -> tuple[dict, dict]:
    """Images to fit on and to choose by: the config's own validation set, or a fifth of every class kept back."""
    if 'val' in data:
        return data.train, data.val
    return dict(type='Part', dataset=data.train, held=False), dict(type='Part', dataset=data.train, held=True)


def refit(data: dict) -> dict:
    """What is tested learns from training and validation images together, where they are splits of one set."""
    if 'val' in data and data.train.get('split') == 'train' and data.val.get('split') == 'val':
        return with_split(data.train, 'train+val')
    return data.train


def with_split(described: dict, split: str) -> dict:
    return {**copy.deepcopy(described), 'split': split}


def first_score(scores: Scores) -> str:
    """The score that settings are chosen by: the first that the data set is scored by."""
    return next(iter(scores)).partition('@')[0]
