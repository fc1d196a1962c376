"""Base class of the protocols that train a network, such as linear evaluation. Each training is a run of mmengine.

The scores of a finished run are read from its folder, and an unfinished run is resumed. An evaluation that was killed can
therefore be started again and continues where it stopped.
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
from mmairl.evaluation.identity import NAME, claim, config_identity
from mmairl.evaluation.protocol import Outcome, Protocol, Scores, Sets
from mmairl.evaluation.recipes import compose, recipe_of
from mmairl.evaluation.sets import held_out, left_out, refit, require_apart
from mmairl.evaluation.sources import outside_sources
from mmairl.io import read_json, write_json

# The seed if neither the settings nor the recipe state one. It is fixed, so that repeated evaluations agree.
SEED = 0
# The keys of a recipe that affect the trained classifier. Other keys only affect the folder of a run and its log.
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
OF_OPTIMIZER = ('lr', 'weight_decay')
GRID = (*OF_OPTIMIZER, 'layers', 'pooling')  # keys that a recipe's `sweep` can vary
# A function that trains and tests. Its arguments are a recipe, training data, test data and the name of the run's folder.
Measure = Callable[..., Scores]


@dataclass(frozen=True)
class TrainingProtocol(Protocol):
    """Base class of protocols that train a network with a recipe. Subclasses name their default recipes.

    Class attributes:
        recipe_name: The default recipe, in `configs/_base_/recipes`.
        lars_recipe_name: The default recipe for weights that LARS trained. Default: `recipe_name`.

    Args:
        recipe: Name or path of a recipe. Default: the config's entry in `recipes`, or the protocol's default recipe.
        seed: Seed for training the classifier. Default: the recipe's seed, or 0.
        trials: Sets of options for the recipe. Each set is tried, and the set that is best on held-out images is used.
            Default: the recipe's `trials`.
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
        """Return whether one run trains many heads to find the best one on held-out images."""
        return False

    def recipe_for(self, cfg: Config, subject: Backbone | str = 'random') -> Config:
        """Return the recipe, in which this protocol's settings replace the recipe's own.

        If no recipe is named, the default recipe is used. It depends on whether LARS trained the weights, according to the
        config's optimizer or, if the config has no optimizer, to the norms of the weights.
        """
        name = self.recipe
        known = 'optim_wrapper' in cfg or self.name in cfg.get('recipes', {})
        if name is None and self.lars_recipe_name and not known and isinstance(subject, Backbone):
            name = self.lars_recipe_name if looks_lars_trained(subject.weights) else None
        recipe = recipe_of(cfg, self.name, name)
        if self.trials:
            recipe.trials = list(self.trials)
        randomness = recipe.get('randomness', {})
        seed = randomness.get('seed') if self.seed is None else self.seed
        recipe.randomness = {**randomness, 'seed': SEED if seed is None else seed}
        return recipe

    def identity(self, cfg: Config, subject: Backbone | str) -> dict[str, Any]:
        recipe = self.recipe_for(cfg, subject)
        sweeps = self.sweeps(cfg)
        keys = {key: recipe[key] for key in RECIPE_KEYS if key in recipe}
        sweep = sweeps and config_identity(recipe.sweep)
        chosen = dict(recipe=config_identity(keys), sweep=sweep)
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
        if trials is None:
            trials = len(recipe.get('trials') or ())
        runs = trials + 1  # The best trial is trained again for the test.
        # A sweep takes two runs: one trains all heads, and the other trains the best head again for the test.
        return seen * runs * (2 if self.sweeps(cfg) else 1)

    def run(
        self, cfg: Config, subject: Backbone | str, sets: Sets, identity: dict[str, Any]
    ) -> Outcome:
        recipe = self.recipe_for(cfg, subject)
        if subject == 'pixels':
            cfg = cfg.copy()
            _, test = sets['test']
            image, *_ = test[0]['inputs']
            cfg.model.backbone = dict(type='Pixels')
            cfg.model.in_channels = image.numel()
        recipe_name = Path(recipe.filename).stem
        print_log(
            f'{self.name}: evaluating {subject} with the recipe {recipe_name}', logger='current'
        )
        start = on_main_process(lambda: self._start(identity, subject))
        scores, details = self._train_and_test(cfg, recipe, start)
        unreadable = [name for name in scores if name.startswith('unreadable')]
        counts = {name: int(scores.pop(name)) for name in unreadable}
        for part in ('train', 'test'):
            dataset = sets[part][1]
            counts |= left_out(part, dataset, dataset.labels)
        named = {f'{self.name}, {name}': value for name, value in scores.items()}
        details['recipe'] = recipe_name
        details['work_dir'] = str(self.work_dir)
        # If an earlier version of mmairl wrote the folder, the identity in it can differ from `identity`.
        details['identity'] = read_json(self.work_dir / NAME)
        return named, details, counts

    def _start(self, identity: dict[str, Any], subject: Backbone | str) -> dict | None:
        """Reserve the folder, write the weights from which all runs start, and return the `init_cfg` that loads them."""
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

    def _train_and_test(
        self, cfg: Config, recipe: Config, start: dict | None
    ) -> tuple[Scores, dict]:
        """Train and test, and return the scores on the test images and the selected settings."""
        data = cfg.evaluation

        def measure(recipe: Config, train_data: dict, test_data: dict, name: str = '') -> Scores:
            folder = self.work_dir / name
            run = compose(cfg, recipe, train_data, test_data, start, folder, self.workers)
            return run_recipe(run, self.launcher)

        if self.sweeps(cfg):
            choose = _sweep
        elif recipe.get('trials'):
            choose = _search
        else:
            return measure(recipe, refit(data), data.test), {}
        on_main_process(lambda: require_apart(data))
        return choose(measure, recipe, data)


def run_recipe(cfg: Config, launcher: str) -> Scores:
    """Train and test a config in its folder, and return the scores.

    If the folder contains scores, the run is finished, and its scores are returned. If it contains a checkpoint, the run is
    resumed.
    """
    folder = Path(cfg.work_dir)
    done = folder / 'scores.json'
    if done.is_file():
        print_log(
            f'{folder}: the run is finished; remove the folder to measure again', logger='current'
        )
        return read_json(done)
    cfg.resume = (folder / 'last_checkpoint').is_file()
    runner = train(cfg, launcher)
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

    A point is a combination of settings, such as a learning rate and a weight decay. For the test, a new head is trained on
    all training images with the point whose head is best on held-out images.
    """
    names = [name for name in GRID if name in recipe.sweep]
    choices = [recipe.sweep[name] for name in names]
    points = [dict(zip(names, values)) for values in itertools.product(*choices)]
    fit, held = held_out(data)
    on_held = measure(_many_heads(recipe, points), fit, held, 'sweep')
    main, *_ = next(iter(on_held)).partition('@')  # The first score is the main score.
    heads = [main]
    if len(points) > 1:
        heads = [f'{main}@{head}' for head in range(len(points))]
    tried = [on_held[head] for head in heads]
    chosen = points[tried.index(max(tried))]
    best = copy.deepcopy(recipe)
    for name, value in chosen.items():
        where = best.optim_wrapper.optimizer if name in OF_OPTIMIZER else best.model
        where[name] = value
    table = [dict(point, score=score) for point, score in zip(points, tried)]
    scores = measure(best, refit(data), data.test, 'test')
    return scores, dict(chosen, held_out=table)


def _many_heads(recipe: Config, points: Sequence[Mapping[str, Any]]) -> Config:
    """Return a recipe that trains one head for each point, which is a combination of settings.

    All heads share the computed features. Each head uses only the layers and the pooling of its point.
    """
    optimizer = recipe.optim_wrapper.optimizer
    model = recipe.model
    fixed = dict(
        lr=optimizer.lr,
        weight_decay=optimizer.get('weight_decay', 0.0),
        layers=model.get('layers'),
        pooling=model.get('pooling', 'cls'),
    )
    points = [fixed | point for point in points]
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
    if points[0]['layers'] and {'layers', 'pooling'} & recipe.sweep.keys():
        layers = max(point['layers'] for point in points)
        many.model.update(layers=layers, pooling='both')
        many.model.blocks = []
        for point in points:
            unused = layers - point['layers']
            tokens = int(point['pooling'] != 'mean')
            blocks = [0] * unused + [tokens] * point['layers']
            blocks.append(int(point['pooling'] != 'cls'))
            many.model.blocks.append(blocks)
    return many


def _search(measure: Measure, recipe: Config, data: Mapping) -> tuple[Scores, dict]:
    """Score each of the recipe's trials on held-out images. Then train the best trial on all training images and test it.

    The score of a trial that diverges is 0.
    """
    tried: dict[str, float] = {}
    halves: dict[str, list[float]] = {}
    options = {}
    for number, trial in enumerate(recipe.trials):
        options[f'trial_{number}'] = dict(trial)

    def recipe_with(name: str, halves: bool) -> Config:
        trial = copy.deepcopy(recipe)
        trial.merge_from_dict(options[name])
        trial.trials = None
        trial.halves = halves
        return trial

    fit, held = held_out(data)
    for name in options:
        scores: Scores = {}
        try:
            # Each half of the held-out images is also scored. A trial can be chosen on one half and scored on the other.
            scores = measure(recipe_with(name, halves=True), fit, held, name)
        except Diverged as error:
            print_log(f'{name} has diverged: {error}', logger='current')
        tried[name] = next(iter(scores.values()), 0.0)
        halves[name] = [scores.get('half 0', 0.0), scores.get('half 1', 0.0)]
        print_log(f'{name}: {tried[name]:.2f} on held-out images', logger='current')
    best = max(tried, key=tried.get)
    details = dict(chosen=best, options=options[best], held_out=tried, halves=halves)
    chosen = recipe_with(best, halves=False)
    return measure(chosen, refit(data), data.test, 'test'), details
