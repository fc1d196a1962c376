"""The protocols that train a network: linear evaluation and fine-tuning.

Each training is a run of mmengine in a folder that is named after the identity of the result. The
scores of a finished run are read from its folder, and an unfinished run is resumed. An evaluation
that was killed can therefore be started again and continues where it stopped.
"""

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mmengine import Config
from mmengine.dist import barrier, is_main_process
from mmengine.logging import print_log

from mmairl.checkpoints.read import Backbone
from mmairl.checkpoints.write import write_backbone
from mmairl.errors import Diverged, UserError
from mmairl.evaluation.features import on_main_process
from mmairl.evaluation.identity import config_identity, key_of
from mmairl.evaluation.protocol import Outcome, Protocol, Scores, Sets
from mmairl.evaluation.recipes import compose, recipe_of
from mmairl.evaluation.sets import held_out, refit, viewed
from mmairl.evaluation.sources import outside_sources
from mmairl.io import read_json, write_json
from mmairl.registry import DATASETS, PROTOCOLS, RUNNERS

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
OPTIMIZER = 'optim_wrapper.optimizer'


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
    recipe_name: ClassVar[str] = ''
    lars_recipe_name: ClassVar[str | None] = None

    def sweep_of(self, recipe: Config, cfg: Config) -> dict[str, Any] | None:
        """Return values of optimizer keys whose combinations one run compares, or None."""
        return None

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
        sweep = self.sweep_of(recipe, cfg)
        return config_identity(dict(recipe=keys, sweep=sweep, imports=outside_sources(recipe)))

    def chooses(self, cfg: Config) -> bool:
        recipe = self.recipe_for(cfg)
        return bool(self.sweep_of(recipe, cfg) or recipe.get('trials'))

    def run(
        self, cfg: Config, subject: Backbone | str, sets: Sets, identity: dict[str, Any]
    ) -> Outcome:
        recipe = self.recipe_for(cfg, subject)
        if subject == 'pixels':
            cfg = copy.deepcopy(cfg)
            cfg.model.backbone = dict(type='Pixels')
        folder = self.work_dir / key_of(identity)
        start = on_main_process(lambda: self._start(folder, subject))
        name = Path(recipe.filename).stem
        print_log(f'{self.name}: the recipe is {name}, the run is in {folder}', logger='current')
        data = viewed(cfg.evaluation, self.name)
        held = held_out(data)

        def measure(recipe: Config, sets: tuple[dict, dict], name: str) -> Scores:
            run = compose(cfg, recipe, *sets, start, folder / name, self.workers)
            return run_recipe(run, self.launcher)

        details = {}
        if sweep := self.sweep_of(recipe, cfg):
            points = [dict(zip(sweep, values)) for values in itertools.product(*sweep.values())]
            of_heads = measure(_many_heads(recipe, points), held, 'sweep').items()
            main = next(iter(of_heads))[0].partition('@')[0]
            scores = [score for key, score in of_heads if key.partition('@')[0] == main]
            chosen = gentlest(points, scores, len(DATASETS.build(held[1])))
            trials = [{OPTIMIZER: point} for point in points]
        elif trials := recipe.get('trials'):
            scores = []
            for number, trial in enumerate(trials):
                try:
                    found = measure(_changed(recipe, trial), held, f'trial_{number}')
                except Diverged as error:
                    print_log(f'trial {number} has diverged: {error}', logger='current')
                    found = {'diverged': 0.0}
                scores.append(next(iter(found.values())))
                print_log(f'trial {number}: {scores[-1]:.2f} on held-out images', logger='current')
            chosen = scores.index(max(scores))
        if trials:
            table = [dict(trial, score=score) for trial, score in zip(trials, scores)]
            details = dict(chosen=dict(trials[chosen]), held_out=table)
        # For the test, the network is trained again on all training images.
        recipe = _changed(recipe, details.get('chosen', {}))
        scores = measure(recipe, (refit(data), data['test']), 'test')
        lost = {key: int(scores.pop(key)) for key in list(scores) if key.startswith('unreadable')}
        named = {f'{self.name}, {key}': value for key, value in scores.items()}
        return named, {**details, 'recipe': name, 'work_dir': str(folder)}, lost

    def _start(self, folder: Path, subject: Backbone | str) -> dict | None:
        """Write the weights from which all runs start. Return the `init_cfg` that loads them."""
        if isinstance(subject, str):
            return None
        path = folder / 'start.pth'
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            write_backbone(subject, path)
        return dict(type='PretrainedBackbone', checkpoint=str(path))


def gentlest(points: Sequence[Mapping[str, Any]], scores: Sequence[float], images: int) -> int:
    """Return the index of the best point among those with the smallest learning rate.

    Only rates with a score within one standard error of the best score count. On few images, the
    best of many scores is best by chance.

    Args:
        points: The settings that were tried, with the key `lr`.
        scores: The percentage of images that each setting classifies correctly.
        images: Number of these images.
    """
    share = max(scores) / 100
    error = 100 * (share * (1 - share) / images) ** 0.5
    near = [index for index, score in enumerate(scores) if score >= max(scores) - error]
    return min(near, key=lambda index: (points[index].get('lr', 0.0), -scores[index]))


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


def _changed(recipe: Config, options: Mapping[str, Any]) -> Config:
    changed = copy.deepcopy(recipe)
    changed.merge_from_dict(dict(options))
    changed.trials = None
    return changed


def _many_heads(recipe: Config, points: Sequence[Mapping[str, Any]]) -> Config:
    """Return a recipe that trains one head for each point. All heads share the features."""
    many = copy.deepcopy(recipe)
    many.model.heads = len(points)
    optimizer = many.optim_wrapper.optimizer
    of_heads = [{**optimizer, **point} for point in points]
    many.optim_wrapper.optimizer = dict(
        type='HeadSGD',
        lr=1.0,
        rates=[head['lr'] for head in of_heads],
        decays=[head.get('weight_decay', 0.0) for head in of_heads],
        momentum=optimizer.get('momentum', 0.0),
        nesterov=optimizer.get('nesterov', False),
    )
    return many


@PROTOCOLS.register_module('linear')
@dataclass(frozen=True)
class LinearEvaluation(TrainingProtocol):
    """Train a linear classifier on a frozen backbone.

    The default recipe is MoCo's, or BYOL's if the weights were trained with LARS.

    Args:
        sweep: Whether to train one classifier for each combination of the settings in the recipe's
            `sweep`, all in one run, and to test the combination that is best on held-out images.
            Default: the config's `evaluation.sweep`.
    """

    sweep: bool | None = None

    recipe_name: ClassVar = 'linear_sgd_100e'
    lars_recipe_name: ClassVar = 'linear_lars_80e'
    columns: ClassVar = {'in1k': 'linear, top-1'}

    def sweep_of(self, recipe: Config, cfg: Config) -> dict[str, Any] | None:
        if not (cfg.evaluation.get('sweep') if self.sweep is None else self.sweep):
            return None
        by_sgd = recipe.optim_wrapper.optimizer.type == 'SGD'
        if not (by_sgd and recipe.model.get('frozen') and 'sweep' in recipe):
            raise UserError(
                'linear: a sweep requires a recipe that freezes the backbone, trains by SGD and '
                f"sets `sweep` ('{Path(recipe.filename).stem}'); use another recipe, or sweep=False",
                code='no-sweep',
            )
        return recipe.sweep


@PROTOCOLS.register_module('finetune')
@dataclass(frozen=True)
class FineTuning(TrainingProtocol):
    """Train the backbone together with a linear classifier.

    The default recipe is BYOL's, in which each training takes 20 000 steps. The config key
    `recipes.finetune` selects another recipe.
    """

    recipe_name: ClassVar = 'finetune_20k'
