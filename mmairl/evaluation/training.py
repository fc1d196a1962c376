"""Linear evaluation and fine-tuning: a recipe, the network of one config and the data of its evaluation make a run.

Twenty data sets and ten recipes are thirty files and not two hundred. Each run is an ordinary one of mmengine in a folder of
its own, which is read when it is finished and continued when it is not, so that a killed evaluation goes on.
"""

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from mmengine import Config, ConfigDict
from mmengine.dist import barrier, is_main_process
from mmengine.logging import print_log

from mmairl.configs import home, load_config
from mmairl.data.subsets import HELD_OUT
from mmairl.data_configs import is_data
from mmairl.engine.launch import train
from mmairl.errors import UserError
from mmairl.evaluation.features import Readable
from mmairl.files import read_json, write_json
from mmairl.registry import DATASETS

Scores = dict[str, float]
Measure = Callable[..., Scores]  # of a recipe, training and test data, and the run's folder
RECIPES = dict(linear='linear_sgd_100e', finetune='finetune_20k')
LONG_TAIL = 10  # times the images of the smallest class in the largest: then the tail is scored for itself


def train_and_test(
    cfg: Config, recipe: Config, start: dict | None, work_dir: Path, sweep: bool, workers: int, launcher: str
) -> tuple[Scores, dict]:
    """Scores on the test set, and what was chosen on the way to them; `start` is the init_cfg of the backbone.

    The folder must be this evaluation's own: `identity.claim` sees to it.
    """

    def measure(recipe: Config, train_data: dict, test_data: dict, name: str = '') -> Scores:
        return run(compose(cfg, recipe, train_data, test_data, start, work_dir / name, workers), launcher)

    data = cfg.evaluation
    if sweep:
        return _sweep(measure, recipe, data)
    if recipe.get('grid'):
        return _search(measure, recipe, data)
    return measure(recipe, refit(data), data.test), {}


def run(cfg: Config, launcher: str) -> Scores:
    """Train and test one config in its folder; a folder with scores is finished, one with checkpoints is continued."""
    folder = Path(cfg.work_dir)
    done = folder / 'scores.json'
    if done.is_file():
        print_log(f'{folder} is finished; remove it to measure again', logger='current')
        return read_json(done)
    cfg.resume = (folder / 'last_checkpoint').is_file()
    scores = train(cfg, launcher).test()
    scores = {name.removeprefix('/'): value for name, value in scores.items()}
    if is_main_process():
        write_json(done, scores)
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
    name = next(iter(on_held)).partition('@')[0]  # the first score of a data set is the one to choose by
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
        tried[name] = next(iter(measure(point, *held_out(data), name).values()))
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
    """Images to fit on and to choose by: the config's validation set, or `held_out`, a fraction of every class."""
    if 'val' in data:
        return data.train, data.val
    part = dict(type='Part', dataset=data.train, fraction=data.get('held_out', HELD_OUT))
    return {**part, 'held': False}, {**part, 'held': True}


def refit(data: dict) -> dict:
    """What is tested learns from training and validation images together, where they are splits of one set."""
    if 'val' in data and data.train.get('split') == 'train' and data.val.get('split') == 'val':
        return {**copy.deepcopy(data.train), 'split': 'train+val'}
    return data.train


def recipe_of(cfg: Config, protocol: str, name: str | None = None) -> Config:
    """The recipe asked for or the one that the config names; else the paper's for the optimizer of the pre-training.

    A recipe is one of ours by its name or, unless the config is read as data and so must run no code, a path.
    """
    named = cfg.get('recipes', {}).get(protocol) if name is None else None
    lars = cfg.get('optim_wrapper', {}).get('optimizer', {}).get('type') == 'LARS'
    chosen = name or named or ('linear_lars_80e' if protocol == 'linear' and lars else RECIPES[protocol])
    ours = {path.stem: path for path in (home() / 'configs/_base_/recipes').glob('*.py')}
    if chosen in ours:
        return load_config(str(ours[chosen]))
    if chosen.endswith('.py') and not (named and is_data(cfg.filename)):
        return load_config(chosen)
    raise UserError(f"there is no recipe '{chosen}'; give one of {', '.join(sorted(ours))}, or the path of a config")


def compose(
    cfg: Config, recipe: Config, train: dict, test: dict, start: dict | None, work_dir: str | Path, workers: int = 4
) -> Config:
    """The recipe with the config's network, which begins from `start` (an init_cfg), on the data sets `train` and `test`."""
    made = copy.deepcopy(recipe)
    made.model.merge(_network(cfg, recipe, start))
    labelled = DATASETS.build(train)
    made.model.classes = len(labelled.classes)
    size = Readable(DATASETS.build(test))[0]['inputs'][0].shape[-1]  # of the images that are tested: crops get it, too
    view = [{'size': size, **step} if 'Crop' in step['type'] else step for step in recipe.train_view]
    on_gpu = torch.cuda.is_available()
    if on_gpu:  # whose convolutions want this layout
        made.setdefault('fast', dict(channels_last=True))
    loader = dict(num_workers=workers, persistent_workers=workers > 0, pin_memory=on_gpu)
    loader['collate_fn'] = dict(type='default_collate')
    made.train_dataloader = dict(
        **loader,
        drop_last=len(labelled) >= made.total_batch_size,
        sampler=dict(type='ResumableSampler', shuffle=True),
        dataset=with_views(train, [view]),
    )
    made.test_dataloader = dict(
        **loader,
        batch_size=cfg.evaluation.get('batch_size', 256),
        sampler=dict(type='ResumableSampler', shuffle=False),
        dataset=dict(type='Readable', dataset=test),
    )
    made.test_cfg = dict()
    counts = labelled.labels.bincount() if labelled.labels.ndim == 1 else torch.ones(1)
    long_tail = counts.max() >= LONG_TAIL * counts.min()
    made.test_evaluator = dict(
        type='HeadAccuracy', metric=labelled.metric, train_counts=counts.tolist() if long_tail else None
    )
    made.work_dir = str(work_dir)
    return made


def _network(cfg: Config, recipe: Config, start: dict | None) -> dict:
    """The config's backbone with what the recipe says of it, where a backbone of its kind has such a key."""
    backbone = copy.deepcopy(cfg.model.backbone)
    backbone.pop('init_cfg', None)
    backbone.update({key: value for key, value in recipe.model.get('backbone', {}).items() if key in backbone})
    if start is not None:
        backbone.init_cfg = start
    width = cfg.model.get('in_channels') or cfg.model.get('projector', {}).get('in_channels')
    if width is None:
        raise UserError(f'{cfg.filename} does not say how wide its features are; set model.in_channels')
    preprocessor = {key: cfg.model.data_preprocessor[key] for key in ('type', 'mean', 'std')}
    return ConfigDict(
        backbone=ConfigDict(_delete_=True, **backbone), in_channels=width, data_preprocessor=ConfigDict(preprocessor)
    )


def with_views(described: dict, views: Sequence) -> dict:
    """The description of a data set, or of the one that it wraps, with other views."""
    described = copy.deepcopy(described)
    inner = described
    while 'dataset' in inner:
        inner = inner['dataset']
    inner['views'] = [list(view) for view in views]
    return described
