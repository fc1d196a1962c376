"""Protocols that train: linear evaluation and fine-tuning, each an ordinary run of mmengine in a folder of its own.

A run that is finished is read, and one that is not is continued, so that a killed evaluation goes on.
"""

import copy
import itertools
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mmengine import Config
from mmengine.dist import barrier, is_main_process
from mmengine.logging import print_log
from torch.utils.data import Dataset

from mmairl.checkpoints.norms import looks_lars_trained
from mmairl.checkpoints.read import Backbone
from mmairl.checkpoints.write import write_backbone
from mmairl.data.splits import HELD_OUT
from mmairl.engine.run import train
from mmairl.errors import Diverged, UserError
from mmairl.evaluation.features import on_main_process
from mmairl.evaluation.identity import NAME, claim, config_identity
from mmairl.evaluation.recipes import compose, recipe_of
from mmairl.evaluation.sets import held_out, left_out, refit, require_apart
from mmairl.evaluation.sources import outside_sources
from mmairl.io import read_json, write_json

PROTOCOLS = ('linear', 'finetune')
SEED = 0  # where neither the settings nor the recipe say one: an evaluation made again is the same
# Of a recipe, what decides which classifier is trained; the rest says where the run lives and what it prints.
OF_RECIPE = (
    *('model', 'train_view', 'total_batch_size', 'optim_wrapper', 'param_scheduler', 'train_cfg', 'custom_hooks'),
    *('trials', 'randomness', 'fast'),
)
Scores = dict[str, float]
Measure = Callable[..., Scores]  # of a recipe, training and test data, and the run's folder


@dataclass(frozen=True)
class TrainingSettings:
    """How linear evaluation and fine-tuning measure, then where they do it; a command line's options."""

    recipe: str | None = None
    sweep: bool | None = None  # in place of the config's `evaluation.sweep`, which is for linear evaluation
    seed: int | None = None  # in place of the recipe's, or SEED
    trials: tuple[dict[str, Any], ...] = ()  # in place of the recipe's: its options, among which held-out images choose
    workers: int = 0
    work_dir: Path = Path('work_dirs/evaluation')
    launcher: str = 'none'
    remeasure: bool = False  # whether a stored run is removed and trained again
    implementation: ClassVar[tuple[str, ...]] = ('by_training', 'recipes', 'metrics')  # files of this folder

    def sweeps(self, cfg: Config, protocol: str) -> bool:
        return bool(protocol == 'linear' and cfg.evaluation.get('sweep') if self.sweep is None else self.sweep)

    def recipe_for(self, cfg: Config, protocol: str, subject: Backbone | str) -> Config:
        """The recipe asked for or the config's; if the config names no optimizer, LARS is guessed from the weights' norms."""
        name, known = self.recipe, 'optim_wrapper' in cfg or 'linear' in cfg.get('recipes', {})
        if name is None and protocol == 'linear' and not known and isinstance(subject, Backbone):
            name = 'linear_lars_80e' if looks_lars_trained(subject.weights) else None
        recipe = recipe_of(cfg, protocol, name)
        if self.trials:
            recipe.trials = list(self.trials)
        randomness = recipe.get('randomness', {})
        seeds = (self.seed, randomness.get('seed'), SEED)
        recipe.randomness = {**randomness, 'seed': next(seed for seed in seeds if seed is not None)}
        return recipe

    def identity(self, cfg: Config, protocol: str, subject: Backbone | str) -> dict[str, Any]:
        """Return all settings that decide a score, beside the weights and the data."""
        recipe, sweeps = self.recipe_for(cfg, protocol, subject), self.sweeps(cfg, protocol)
        by_sgd = recipe.optim_wrapper.optimizer.type == 'SGD' and recipe.model.get('frozen')
        if sweeps and not (by_sgd and 'sweep' in recipe):
            raise UserError(
                f'--sweep trains many heads on one frozen backbone by SGD, with the rates that a recipe names as `sweep`, and '
                f'{Path(recipe.filename).stem} is none such; use a recipe for linear evaluation'
            )
        chosen = dict(
            recipe=config_identity({key: recipe[key] for key in OF_RECIPE if key in recipe}),
            sweep=config_identity(recipe.sweep) if sweeps else False,
        )
        if imports := outside_sources(recipe):
            chosen['imports'] = imports
        if (sweeps or recipe.get('trials')) and 'val' not in cfg.evaluation:
            chosen['held_out'] = cfg.evaluation.get('held_out', HELD_OUT)
        return chosen


def measure(
    cfg: Config,
    protocol: str,
    subject: Backbone | str,
    settings: TrainingSettings,
    sets: Mapping[str, tuple[dict, Dataset]],
    identity: dict[str, Any],
) -> tuple[Scores, dict, dict[str, int]]:
    """Train by the recipe, choose where it says so, and test once."""
    recipe = settings.recipe_for(cfg, protocol, subject)
    if subject == 'pixels':
        cfg = cfg.copy()
        image = sets['test'][1][0]['inputs'][0]
        cfg.model.backbone, cfg.model.in_channels = dict(type='Pixels'), image.numel()
    name = Path(recipe.filename).stem
    print_log(f'{protocol} of {subject} by the recipe {name}', logger='current')
    start = on_main_process(lambda: _start(settings, identity, subject))
    sweeps = settings.sweeps(cfg, protocol)
    scores, details = train_and_test(cfg, recipe, start, settings.work_dir, sweeps, settings.workers, settings.launcher)
    counts = {count: int(scores.pop(count)) for count in list(scores) if count.startswith('unreadable')}
    for part in ('train', 'test'):
        counts |= left_out(part, sets[part][1], sets[part][1].labels)
    scores = {f'{protocol}, {score}': value for score, value in scores.items()}
    return scores, {'recipe': name, 'work_dir': str(settings.work_dir), **details}, counts


def _start(settings: TrainingSettings, identity: dict[str, Any], subject: Backbone | str) -> dict | None:
    """Take the folder for this evaluation, and put the weights there that all of its runs start from."""
    folder = settings.work_dir
    if settings.remeasure and (folder / NAME).is_file():
        shutil.rmtree(folder)
    claim(folder, identity)
    if isinstance(subject, str):
        return None
    if not (folder / 'start.pth').is_file():
        write_backbone(subject, folder / 'start.pth')
    return dict(type='PretrainedBackbone', checkpoint=str(folder / 'start.pth'))


def train_and_test(
    cfg: Config, recipe: Config, start: dict | None, work_dir: Path, sweep: bool, workers: int, launcher: str
) -> tuple[Scores, dict]:
    """Scores on the test set, and what was chosen on the way to them; `start` is the init_cfg of the backbone.

    The folder must be this evaluation's own: `identity.claim` sees to it.
    """

    def measure(recipe: Config, train_data: dict, test_data: dict, name: str = '') -> Scores:
        return run(compose(cfg, recipe, train_data, test_data, start, work_dir / name, workers), launcher)

    data = cfg.evaluation
    if sweep or recipe.get('trials'):
        on_main_process(lambda: require_apart(data))
    if sweep:
        return _sweep(measure, recipe, data)
    if recipe.get('trials'):
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
    runner = train(cfg, launcher)
    scores = {name.removeprefix('/'): value for name, value in runner.test().items()}
    if unreadable := len(runner.train_dataloader.dataset.met()):
        scores['unreadable training images'] = unreadable
    if is_main_process():
        write_json(done, scores)
    barrier()
    return scores


def _sweep(measure: Measure, recipe: Config, data: dict) -> tuple[Scores, dict]:
    """Every pair of the recipe's rates and decays as a head of its own, in one pass; the best is then tested."""
    optimizer = recipe.optim_wrapper.optimizer
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
    """Run the recipe's trials on held-out images, and the best once more on all; one that diverges is the worst."""
    tried: dict[str, float] = {}
    halves: dict[str, list[float]] = {}
    made: dict[str, Config] = {}
    for number, options in enumerate(recipe.trials):
        name, trial = f'trial_{number}', copy.deepcopy(recipe)
        trial.merge_from_dict({**options, 'trials': None})
        made[name] = trial
        try:
            trial.halves = True  # one chooses where the other reports
            scores = measure(trial, *held_out(data), name)
            tried[name], halves[name] = next(iter(scores.values())), [scores['half 0'], scores['half 1']]
        except Diverged as error:
            tried[name], halves[name] = 0.0, [0.0, 0.0]
            print_log(f'{name} has diverged: {error}', logger='current')
        print_log(f'{name}: {tried[name]:.2f} on held-out images', logger='current')
    best = max(tried, key=tried.get)
    made[best].halves = False
    details = dict(chosen=best, options=dict(recipe.trials[list(made).index(best)]), held_out=tried, halves=halves)
    return measure(made[best], refit(data), data.test, 'test'), details
