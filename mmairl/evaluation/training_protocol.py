"""Base class of the protocols that train a network, such as linear evaluation.

Each training is a run of mmengine in a folder that is named after the identity of the result. The
scores of a finished run are read from its folder, and an unfinished run is resumed. An evaluation
that was killed can therefore be started again and continues where it stopped.
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

from mmairl.checkpoints.read import Backbone
from mmairl.checkpoints.write import write_backbone
from mmairl.errors import Diverged
from mmairl.evaluation.features import on_main_process
from mmairl.evaluation.identity import config_identity, key_of
from mmairl.evaluation.protocol import Outcome, Protocol, Scores, Sets
from mmairl.evaluation.recipes import compose, recipe_of
from mmairl.evaluation.sets import held_out, left_out, refit
from mmairl.evaluation.sources import outside_sources
from mmairl.io import read_json, write_json
from mmairl.registry import RUNNERS

# The keys of a recipe that affect the trained classifier.
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
GRID = ('lr', 'weight_decay')  # keys of the optimizer that a recipe's `sweep` can vary
# A function that trains and tests. Its arguments are a recipe, training data, test data and the
# name of the run's folder.
Measure = Callable[..., Scores]


@dataclass(frozen=True)
class TrainingProtocol(Protocol):
    """Base class of protocols that train a network with a recipe.

    Class attributes:
        recipe_name: The default recipe, in `configs/_base_/recipes`.
        lars_recipe_name: The default recipe for weights that LARS trained. Default: `recipe_name`.

    Args:
        recipe: Name or path of a recipe. Default: the config's entry in `recipes`, or the protocol's
            default recipe.
        seed: Seed for training the classifier. Default: the recipe's seed, or 0.
    """

    recipe: str | None = None
    seed: int | None = None

    validation: ClassVar = 'recipe'
    null_rows: ClassVar = ('random',)
    trains: ClassVar = True
    recipe_name: ClassVar[str] = ''
    lars_recipe_name: ClassVar[str | None] = None

    def sweeps(self, cfg: Config) -> bool:
        """Return whether one run trains many heads to find the best on held-out images."""
        return False

    def recipe_for(self, cfg: Config, subject: Backbone | str = 'random') -> Config:
        """Return the recipe, in which this protocol's settings replace the recipe's own."""
        recipe = recipe_of(cfg, self.name, self.recipe, subject)
        randomness = recipe.get('randomness', {})
        # The seed is fixed, so that repeated evaluations agree.
        seed = randomness.get('seed', 0) if self.seed is None else self.seed
        recipe.randomness = {**randomness, 'seed': seed or 0}
        return recipe

    def identity(self, cfg: Config, subject: Backbone | str) -> dict[str, Any]:
        recipe = self.recipe_for(cfg, subject)
        keys = {key: recipe[key] for key in RECIPE_KEYS if key in recipe}
        sweep = self.sweeps(cfg) and recipe.sweep
        return config_identity(
            dict(recipe=keys, sweep=sweep, imports=outside_sources(recipe)),
        )

    def chooses(self, cfg: Config) -> bool:
        return bool(self.sweeps(cfg) or self.recipe_for(cfg).get('trials'))

    def run(
        self, cfg: Config, subject: Backbone | str, sets: Sets, identity: dict[str, Any]
    ) -> Outcome:
        recipe = self.recipe_for(cfg, subject)
        if subject == 'pixels':
            cfg = copy.deepcopy(cfg)
            cfg.model.backbone = dict(type='Pixels')
        folder = self.work_dir / key_of(identity)
        start = on_main_process(lambda: self._start(folder, subject))
        text = f'{self.name}: the recipe is {Path(recipe.filename).stem}, the run is in {folder}'
        print_log(text, logger='current')
        scores, details = self._train_and_test(cfg, recipe, start, folder)
        unreadable = [name for name in scores if name.startswith('unreadable')]
        counts = {name: int(scores.pop(name)) for name in unreadable}
        for part in ('train', 'test'):
            dataset = sets[part][1]
            counts |= left_out(part, dataset, dataset.labels)
        named = {f'{self.name}, {name}': value for name, value in scores.items()}
        details |= dict(recipe=Path(recipe.filename).stem, work_dir=str(folder))
        return named, details, counts

    def _start(self, folder: Path, subject: Backbone | str) -> dict | None:
        """Write the weights from which all runs start. Return the `init_cfg` that loads them."""
        if self.remeasure and folder.is_dir():
            shutil.rmtree(folder)
        if isinstance(subject, str):
            return None
        path = folder / 'start.pth'
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            write_backbone(subject, path)
        return dict(type='PretrainedBackbone', checkpoint=str(path))

    def _train_and_test(
        self, cfg: Config, recipe: Config, start: dict | None, folder: Path
    ) -> tuple[Scores, dict]:
        """Return the scores on the test images and the selected settings."""
        data = cfg.evaluation

        def measure(recipe: Config, train: dict, test: dict, name: str) -> Scores:
            run = compose(cfg, recipe, train, test, start, folder / name, self.workers)
            return run_recipe(run, self.launcher)

        if self.sweeps(cfg):
            return _sweep(measure, recipe, data)
        if recipe.get('trials'):
            return _search(measure, recipe, data)
        return measure(recipe, refit(data), data.test, 'test'), {}


def run_recipe(cfg: Config, launcher: str) -> Scores:
    """Train and test a config in its folder, and return the scores.

    If the folder contains scores, the run is finished, and its scores are returned. If it contains a
    checkpoint, the run is resumed.
    """
    folder = Path(cfg.work_dir)
    done = folder / 'scores.json'
    if done.is_file():
        return read_json(done)
    cfg.resume = (folder / 'last_checkpoint').is_file()
    cfg.launcher = launcher
    # The class comes from the registry, so that evaluation does not depend on the engine.
    runner = RUNNERS.get('Runner').from_cfg(cfg)
    runner.train()
    scores = {name.removeprefix('/'): value for name, value in runner.test().items()}
    unreadable = len(runner.train_dataloader.dataset.met())
    if unreadable:
        scores['unreadable training images'] = unreadable
    if is_main_process():
        write_json(done, scores)
    barrier()
    return scores


def _sweep(measure: Measure, recipe: Config, data: Mapping) -> tuple[Scores, dict]:
    """Train one head for each point of the recipe's grid in a single run, and test the best point.

    A point is a learning rate and a weight decay. For the test, a new head is trained on all
    training images with the point whose head is best on held-out images.
    """
    optimizer = recipe.optim_wrapper.optimizer
    choices = [recipe.sweep.get(name, [optimizer.get(name, 0.0)]) for name in GRID]
    points = [dict(zip(GRID, values)) for values in itertools.product(*choices)]
    on_held = measure(_many_heads(recipe, points), *held_out(data), 'sweep')
    main, *_ = next(iter(on_held)).partition('@')  # The first score is the main score.
    names = [f'{main}@{head}' for head in range(len(points))] if len(points) > 1 else [main]
    tried = [on_held[name] for name in names]
    chosen = points[tried.index(max(tried))]
    best = copy.deepcopy(recipe)
    best.optim_wrapper.optimizer.update(chosen)
    table = [dict(point, score=score) for point, score in zip(points, tried)]
    scores = measure(best, refit(data), data.test, 'test')
    return scores, dict(chosen, held_out=table)


def _many_heads(recipe: Config, points: Sequence[Mapping[str, Any]]) -> Config:
    """Return a recipe that trains one head for each point. All heads share the features."""
    optimizer = recipe.optim_wrapper.optimizer
    many = copy.deepcopy(recipe)
    many.model.heads = len(points)
    many.optim_wrapper.optimizer = dict(
        type='HeadSGD',
        lr=1.0,
        rates=[point['lr'] for point in points],
        decays=[point['weight_decay'] for point in points],
        momentum=optimizer.get('momentum', 0.0),
        nesterov=optimizer.get('nesterov', False),
    )
    return many


def _search(measure: Measure, recipe: Config, data: Mapping) -> tuple[Scores, dict]:
    """Score each of the recipe's trials on held-out images, and test the best trial.

    For the test, the network is trained again on all training images. The score of a trial that
    diverges is 0.
    """
    trials = {f'trial_{number}': dict(trial) for number, trial in enumerate(recipe.trials)}

    def recipe_with(options: dict) -> Config:
        trial = copy.deepcopy(recipe)
        trial.merge_from_dict(options)
        trial.trials = None
        return trial

    fit, held = held_out(data)
    tried: dict[str, float] = {}
    for name, options in trials.items():
        try:
            scores = measure(recipe_with(options), fit, held, name)
        except Diverged as error:
            print_log(f'{name} has diverged: {error}', logger='current')
            scores = {'diverged': 0.0}
        tried[name] = next(iter(scores.values()))
        print_log(f'{name}: {tried[name]:.2f} on held-out images', logger='current')
    best = max(tried, key=tried.get)
    scores = measure(recipe_with(trials[best]), refit(data), data.test, 'test')
    return scores, dict(chosen=best, options=trials[best], held_out=tried)
