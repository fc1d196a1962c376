"""Protocols that train: each is an ordinary run of mmengine in its own folder.

A finished run is read again, and an unfinished one is resumed, so that a killed evaluation continues where it stopped.
"""

import copy
import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mmengine import Config
from mmengine.dist import barrier, is_main_process
from mmengine.logging import print_log

from mmairl.checkpoints.norms import looks_lars_trained
from mmairl.checkpoints.read import Backbone
from mmairl.checkpoints.write import write_backbone
from mmairl.data.splits import HELD_OUT
from mmairl.engine.run import train
from mmairl.errors import Diverged
from mmairl.evaluation.features import on_main_process
from mmairl.evaluation.identity import NAME, claim, config_identity, data_identity
from mmairl.evaluation.protocol import Protocol, Scores, Sets
from mmairl.evaluation.recipes import compose, recipe_of
from mmairl.evaluation.robustness import robustness_scores
from mmairl.evaluation.sets import held_out, left_out, refit, require_apart
from mmairl.evaluation.sources import outside_sources
from mmairl.io import read_json, write_json

SEED = 0  # if neither the settings nor the recipe have one, so that a repeated evaluation has the same result
# The keys of a recipe that decide which classifier is trained. Others concern where a run is stored and what it prints.
RECIPE_KEYS = (
    'model',
    'train_view',
    'total_batch_size',
    'optim_wrapper',
    'param_scheduler',
    'train_cfg',
    'custom_hooks',
    'trials',
    'randomness',
    'fast',
)
GRID = ('lr', 'weight_decay', 'layers', 'pooling')  # what a recipe's `sweep` can vary
Measure = Callable[
    ..., Scores
]  # called with a recipe, training data, test data and the name of the run's folder


@dataclass(frozen=True)
class TrainingProtocol(Protocol):
    """Base class of protocols that train a network by a recipe. Subclasses name their recipes.

    Class attributes:
        recipe_name: The default recipe, in `configs/_base_/recipes`.
        lars_recipe_name: The default recipe for weights that LARS trained. None uses `recipe_name`.

    Args:
        recipe: Name or path of a recipe. Default: the config's `recipes`, or the protocol's own.
        seed: Seed of the classifier. Default: the recipe's, or 0.
        trials: Options of the recipe, among which held-out images choose. Default: the recipe's `trials`.
    """

    recipe: str | None = None
    seed: int | None = None
    trials: tuple[dict[str, Any], ...] = ()

    validation: ClassVar = 'recipe'
    null_rows: ClassVar = ('random',)
    trains: ClassVar = True
    recipe_name: ClassVar[str] = ''
    lars_recipe_name: ClassVar[str | None] = None

    def sweeps(self, cfg: Config) -> bool:
        """Return whether one run trains many heads, of which held-out images choose one."""
        return False

    def recipe_for(self, cfg: Config, subject: Backbone | str = 'random') -> Config:
        """Return the recipe, completed by the settings.

        If neither the settings nor the config decide, the weights tell whether LARS trained them.
        """
        name = self.recipe
        known = 'optim_wrapper' in cfg or self.name in cfg.get('recipes', {})
        if name is None and self.lars_recipe_name and not known and isinstance(subject, Backbone):
            name = self.lars_recipe_name if looks_lars_trained(subject.weights) else None
        recipe = recipe_of(cfg, self.name, name)
        if self.trials:
            recipe.trials = list(self.trials)
        randomness = recipe.get('randomness', {})
        seeds = (self.seed, randomness.get('seed'), SEED)
        recipe.randomness = {**randomness, 'seed': next(seed for seed in seeds if seed is not None)}
        return recipe

    def identity(self, cfg: Config, subject: Backbone | str) -> dict[str, Any]:
        recipe = self.recipe_for(cfg, subject)
        sweeps = self.sweeps(cfg)
        keys = {key: recipe[key] for key in RECIPE_KEYS if key in recipe}
        chosen = dict(
            recipe=config_identity(keys), sweep=config_identity(recipe.sweep) if sweeps else False
        )
        if further := cfg.evaluation.get('robustness'):
            chosen['robustness'] = {name: data_identity(data) for name, data in further.items()}
        if imports := outside_sources(recipe):
            chosen['imports'] = imports
        if (sweeps or recipe.get('trials')) and 'val' not in cfg.evaluation:
            chosen['held_out'] = cfg.evaluation.get('held_out', HELD_OUT)
        return chosen

    def chooses(self, cfg: Config, trials: bool = False) -> bool:
        return bool(trials or self.sweeps(cfg) or self.recipe_for(cfg).get('trials'))

    def images_seen(self, cfg: Config, images: int | None, trials: int | None = None) -> int | None:
        recipe = self.recipe_for(cfg)
        length = recipe.train_cfg
        if 'max_iters' in length:
            seen = length.max_iters * recipe.total_batch_size
        elif images:
            seen = length.max_epochs * images
        else:
            return None
        trials = len(recipe.get('trials') or ()) if trials is None else trials
        runs = trials + 1  # the best trial is repeated for the test
        # A sweep trains all heads in one run, and the best once more.
        return seen * runs * (2 if self.sweeps(cfg) else 1)

    def run(
        self, cfg: Config, subject: Backbone | str, sets: Sets, identity: dict[str, Any]
    ) -> tuple[Scores, dict, dict[str, int]]:
        recipe = self.recipe_for(cfg, subject)
        if subject == 'pixels':
            cfg = cfg.copy()
            image = sets['test'][1][0]['inputs'][0]
            cfg.model.backbone = dict(type='Pixels')
            cfg.model.in_channels = image.numel()
        recipe_name = Path(recipe.filename).stem
        print_log(f'{self.name} of {subject} by the recipe {recipe_name}', logger='current')
        start = on_main_process(lambda: self._start(identity, subject))
        scores, details = train_and_test(
            cfg, recipe, start, self.work_dir, self.sweeps(cfg), self.workers, self.launcher
        )
        counts = {
            name: int(scores.pop(name)) for name in list(scores) if name.startswith('unreadable')
        }
        for part in ('train', 'test'):
            dataset = sets[part][1]
            counts |= left_out(part, dataset, dataset.labels)
        scores = {f'{self.name}, {name}': value for name, value in scores.items()}
        # A finished run may have the identity of an earlier version.
        stored = read_json(self.work_dir / NAME)
        details = dict(recipe=recipe_name, work_dir=str(self.work_dir), identity=stored, **details)
        return scores, details, counts

    def _start(self, identity: dict[str, Any], subject: Backbone | str) -> dict | None:
        """Claim the folder, write the weights that all runs start from, and return the `init_cfg` that reads them."""
        folder = self.work_dir
        if self.remeasure and (folder / NAME).is_file():
            shutil.rmtree(folder)
        claim(folder, identity)
        if isinstance(subject, str):
            return None
        path = folder / 'start.pth'
        if not path.is_file():
            write_backbone(subject, path)
        return dict(type='PretrainedBackbone', checkpoint=str(path))


def train_and_test(
    cfg: Config,
    recipe: Config,
    start: dict | None,
    work_dir: Path,
    sweep: bool,
    workers: int,
    launcher: str,
) -> tuple[Scores, dict]:
    """Return the scores on the test images, and what was chosen before.

    Args:
        cfg: The config with the backbone and the data.
        recipe: The recipe of the training.
        start: The `init_cfg` of the backbone. None starts at random.
        work_dir: The folder, which must belong to this evaluation (`identity.claim`).
        sweep: Whether to choose among the rates and decays of the recipe's `sweep`.
        workers: Number of processes that load images.
        launcher: How the processes were started.
    """

    def measure(recipe: Config, train_data: dict, test_data: dict, name: str = '') -> Scores:
        return run_recipe(
            compose(cfg, recipe, train_data, test_data, start, work_dir / name, workers), launcher
        )

    data = cfg.evaluation
    if sweep or recipe.get('trials'):
        on_main_process(lambda: require_apart(data))
    if sweep:
        return _sweep(measure, recipe, data)
    if recipe.get('trials'):
        return _search(measure, recipe, data)
    return measure(recipe, refit(data), data.test), {}


def run_recipe(cfg: Config, launcher: str) -> Scores:
    """Train and test one config in its folder. A folder with scores is finished; one with checkpoints is resumed."""
    folder = Path(cfg.work_dir)
    done = folder / 'scores.json'
    if done.is_file():
        print_log(f'{folder} is finished; remove it to measure again', logger='current')
        return read_json(done)
    cfg.resume = (folder / 'last_checkpoint').is_file()
    runner = train(cfg, launcher)
    scores = {name.removeprefix('/'): value for name, value in runner.test().items()}
    scores |= robustness_scores(runner, cfg.get('robustness', {}))
    unreadable = len(runner.train_dataloader.dataset.met())
    if unreadable:
        scores['unreadable training images'] = unreadable
    if is_main_process():
        write_json(done, scores)
    barrier()
    return scores


def _sweep(measure: Measure, recipe: Config, data: Mapping) -> tuple[Scores, dict]:
    """Train one head for each point of the recipe's grid in one run, then test the best."""
    names = [name for name in GRID if name in recipe.sweep]
    points = [
        dict(zip(names, values))
        for values in itertools.product(*(recipe.sweep[name] for name in names))
    ]
    fit, held = held_out(data)
    on_held = measure(_many_heads(recipe, points), fit, held, 'sweep')
    main = next(iter(on_held)).partition('@')[0]  # the first score of a data set decides
    heads = [f'{main}@{head}' for head in range(len(points))] if len(points) > 1 else [main]
    tried = [on_held[head] for head in heads]
    chosen = points[tried.index(max(tried))]
    best = copy.deepcopy(recipe)
    best.optim_wrapper.optimizer.update({name: chosen[name] for name in names[:2]})
    best.model.update({name: chosen[name] for name in names[2:]})
    table = [dict(point, score=score) for point, score in zip(points, tried)]
    return measure(best, refit(data), data.test, 'test'), dict(chosen, held_out=table)


def _many_heads(recipe: Config, points: Sequence[Mapping[str, Any]]) -> Config:
    """Return a recipe with a head for each point. All heads learn from one set of features, of which each sees a part."""
    optimizer = recipe.optim_wrapper.optimizer
    many = copy.deepcopy(recipe)
    many.model.heads = len(points)
    many.optim_wrapper.optimizer = dict(
        type='HeadSGD',
        lr=1.0,
        rates=[point['lr'] for point in points],
        decays=[point['weight_decay'] for point in points],
        momentum=optimizer.momentum,
        nesterov=optimizer.get('nesterov', False),
    )
    if 'layers' in points[0]:
        layers = max(point['layers'] for point in points)
        many.model.update(layers=layers, pooling='both')
        many.model.blocks = [
            [int(layers - layer <= point['layers']) for layer in range(layers)]
            + [int(point['pooling'] == 'both')]
            for point in points
        ]
    return many


def _search(measure: Measure, recipe: Config, data: Mapping) -> tuple[Scores, dict]:
    """Run the recipe's trials on held-out images, and the best again on all. A trial that diverges scores 0."""
    tried: dict[str, float] = {}
    halves: dict[str, list[float]] = {}
    recipes: dict[str, Config] = {}
    options_of: dict[str, dict] = {}
    fit, held = held_out(data)
    for number, options in enumerate(recipe.trials):
        name = f'trial_{number}'
        options_of[name] = dict(options)
        trial = copy.deepcopy(recipe)
        trial.merge_from_dict({**options, 'trials': None})
        recipes[name] = trial
        try:
            trial.halves = (
                True  # one half of the held-out images chooses; the other gives an unbiased score
            )
            scores = measure(trial, fit, held, name)
            tried[name] = next(iter(scores.values()))
            halves[name] = [scores['half 0'], scores['half 1']]
        except Diverged as error:
            tried[name] = 0.0
            halves[name] = [0.0, 0.0]
            print_log(f'{name} has diverged: {error}', logger='current')
        print_log(f'{name}: {tried[name]:.2f} on held-out images', logger='current')
    best = max(tried, key=tried.get)
    recipes[best].halves = False
    details = dict(chosen=best, options=options_of[best], held_out=tried, halves=halves)
    return measure(recipes[best], refit(data), data.test, 'test'), details
