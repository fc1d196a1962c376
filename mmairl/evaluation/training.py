"""Linear evaluation and fine-tuning: one run of a recipe, or a search on held-out images and then the chosen run.

Each run lives in a folder of its own and is finished, continued or refused by what that folder holds, so that a killed
evaluation goes on where it was.
"""

import copy
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from mmengine import Config
from mmengine.dist import barrier, is_main_process
from mmengine.logging import print_log

from mmairl.engine.atomic import replacing
from mmairl.engine.launch import train
from mmairl.errors import UserError
from mmairl.evaluation.compose import compose

Scores = dict[str, float]
RUNS = itertools.count()


def train_and_test(
    cfg: Config, recipe: Config, start: dict | None, work_dir: Path, sweep: bool, workers: int, launcher: str
) -> tuple[Scores, dict]:
    """Scores on the test set, and what was chosen on the way to them."""
    make = dict(cfg=cfg, recipe=recipe, start=start, workers=workers)
    data = cfg.evaluation
    if sweep:
        return _sweep(make, data, work_dir, launcher)
    if recipe.get('grid'):
        return _search(make, data, work_dir, launcher)
    return run(compose(**make, train=data.train, test=data.test, work_dir=work_dir), launcher), {}


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
    runner = train(cfg, launcher)
    scores = {name.removeprefix('/'): value for name, value in runner.test().items()}
    if is_main_process():
        with replacing(done) as beside:
            beside.write_text(json.dumps(scores))
    barrier()
    return scores


def _sweep(make: dict, data: dict, work_dir: Path, launcher: str) -> tuple[Scores, dict]:
    """Every pair of the recipe's rates and decays as a head of its own, in one pass; the best is then tested."""
    pairs = list(itertools.product(*(make['recipe'].sweep[key] for key in ('lr', 'weight_decay'))))
    optimizer = make['recipe'].optim_wrapper.optimizer
    if optimizer.type != 'SGD' or not make['recipe'].model.get('frozen'):
        raise UserError('--sweep trains many heads on one frozen backbone by SGD; use a recipe for linear evaluation')
    recipe = copy.deepcopy(make['recipe'])
    recipe.model.heads = len(pairs)
    rates, decays = (list(column) for column in zip(*pairs))
    recipe.optim_wrapper.optimizer = dict(
        type='HeadSGD',
        lr=1.0,
        rates=rates,
        decays=decays,
        momentum=optimizer.momentum,
        nesterov=optimizer.get('nesterov', False),
    )
    fit, held = held_out(data)
    on_held = run(compose(**{**make, 'recipe': recipe}, train=fit, test=held, work_dir=work_dir / 'sweep'), launcher)
    name = first_score(on_held)
    by_pair = {pair: on_held[f'{name}@{head}' if len(pairs) > 1 else name] for head, pair in enumerate(pairs)}
    best = max(by_pair, key=by_pair.get)
    chosen = copy.deepcopy(make['recipe'])
    chosen.optim_wrapper.optimizer.update(lr=best[0], weight_decay=best[1])
    scores = run(
        compose(**{**make, 'recipe': chosen}, train=refit(data), test=data.test, work_dir=work_dir / 'test'), launcher
    )
    return scores, dict(lr=best[0], weight_decay=best[1], held_out=[dict(lr=lr, weight_decay=wd, score=score) for (lr, wd), score in by_pair.items()])  # fmt: skip  # noqa: E501


def _search(make: dict, data: dict, work_dir: Path, launcher: str) -> tuple[Scores, dict]:
    """The recipe once for every point of its grid on held-out images, then once more on all with the best."""
    fit, held = held_out(data)
    tried = []
    for name, recipe in points(make['recipe']):
        made = compose(**{**make, 'recipe': recipe}, train=fit, test=held, work_dir=work_dir / name)
        scores = run(made, launcher)
        tried.append((scores[first_score(scores)], name, recipe))
        print_log(f'{name}: {tried[-1][0]:.2f} on held-out images', logger='current')
    best = max(tried, key=lambda point: point[0])
    made = compose(**{**make, 'recipe': best[2]}, train=refit(data), test=data.test, work_dir=work_dir / 'test')
    return run(made, launcher), dict(chosen=best[1], held_out={name: score for score, name, _ in tried})


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
    """What the chosen setting learns from: training and validation images together where they are splits of one set."""
    if 'val' in data and data.train.get('split') == 'train' and data.val.get('split') == 'val':
        return with_split(data.train, 'train+val')
    return data.train


def with_split(described: dict, split: str) -> dict:
    return {**copy.deepcopy(described), 'split': split}


def first_score(scores: Scores) -> str:
    """The score that settings are chosen by: the first that the data set is scored by."""
    return next(iter(scores)).partition('@')[0]
