"""Find out whether pre-training pays on custom images, from a folder and a few labels."""

import io
import math
import re
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
from mmengine.config import Config
from torch import nn

from mmairl.apis.pretrain import pretrain
from mmairl.apis.suggest import config_for
from mmairl.checkpoints.load import load_checkpoint
from mmairl.checkpoints.read import read_backbone
from mmairl.data.datasets import Views
from mmairl.data.splits import Groups
from mmairl.engine.run import register, train
from mmairl.errors import UserError, cleared_frames
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.embed import embedding_network
from mmairl.evaluation.feature_store import read_rows, stored
from mmairl.evaluation.features import Extraction, Readable
from mmairl.evaluation.identity import (
    claim,
    code_identity,
    config_identity,
    files_identity,
    key_of,
    weights_identity,
)
from mmairl.evaluation.protocol import default_device
from mmairl.io import read_json, write_json
from mmairl.report.compare_page import short_names
from projects.worth.few_labels import (
    DRAWS,
    MARGIN,
    Right,
    Verdict,
    bootstrap_accuracies,
    class_weights,
    classify_by_draw,
    classify_correctly,
    decide,
    draw,
    saved_labels,
    standardize,
)
from projects.worth.page import write_worth_page
from projects.worth.task import Task, lay_out, read_task, testable

SIZES = (32, 48, 64, 96, 128, 160, 224)  # with a time budget, the side of the crops is one of these
EPOCHS = 100  # number of epochs without a time budget
MOST = 800  # maximum number of epochs with a time budget
# After fewer epochs, the answer is never that pre-training does not pay: the papers of the methods train for at least 100
# epochs on a million images, and small sets need more. A time budget selects larger crops only if they leave time for 100
# epochs.
ENOUGH = 100
SHARE = 0.8  # fraction of the time budget for pre-training
OF_DRAWS = 0.1  # fraction of the time budget for classifiers
BUDGETED = (10, 50)  # minimum and maximum number of draws of labels with a time budget
PIXELS = 32  # side to which images are resized if their raw pixels serve as features
LOOKED_AT = 32  # number of images on which the speed of feature extraction is measured
BATCH = 64
STEPS = (2, 8)  # the speed of training is measured over 2 steps, and over 8 if a step is fast
SLOW = 2.0  # maximum seconds of a fast step
# The network (None for raw pixels), the mean and standard deviation of the pixels, and the transforms of an image.
Network = tuple[nn.Module | None, Mapping[str, Any], Views]
RAW = 'raw pixels'
RANDOM = 'random initialisation'
OWN = 'own pre-training'


@dataclass(frozen=True)
class Worth:
    """The answer: the content of worth.json, and the path of the page."""

    record: dict[str, Any]
    page: Path

    def __str__(self) -> str:
        return self.record['answer']


@dataclass(frozen=True)
class Training:
    """The length of a pre-training, and the side of its crops in pixels."""

    size: int
    epochs: int
    steps: int

    def __str__(self) -> str:
        return f'{count(self.epochs, "epoch")}, {count(self.steps, "step")}, crops of {self.size} pixels'


class Plan(msgspec.Struct):
    """The plan of a comparison: the requested settings, the selected ones, and the expected seconds of each stage."""

    asked: dict[str, float | None]
    size: int
    epochs: int
    seconds: dict[str, float]
    draws: int = DRAWS

    @property
    def remarks(self) -> list[str]:
        """Return remarks on a plan that exceeds the budget, or has too few epochs to advise against pre-training."""
        minutes, total = self.asked['minutes'], sum(self.seconds.values()) / 60
        remarks = []
        if minutes and total > minutes:
            remarks.append(
                f'the plan takes {total:.3g} minutes, more than the budget of {minutes:g}'
            )
        if self.epochs < ENOUGH:
            remarks.append(
                f'{count(self.epochs, "epoch")} cannot show that pre-training does not pay; {ENOUGH} epochs can'
            )
        return remarks

    def __str__(self) -> str:
        lines = [f'{seconds / 60:8.1f} minutes  {stage}' for stage, seconds in self.seconds.items()]
        total = f'{sum(self.seconds.values()) / 60:8.1f} minutes in total, at the speed measured on this machine'
        remarks = [f'remark: {remark}' for remark in self.remarks]
        length = f'crops of {self.size} pixels, {count(self.epochs, "epoch")}'
        chosen = f'own pre-training: {length}; labels are drawn {self.draws} times'
        return '\n'.join([*lines, total, *remarks, chosen])


@dataclass(frozen=True)
class Comparison:
    """The candidates of a task: external weights by name, and the settings of pre-training."""

    task: Task
    out: Path
    starts: Mapping[str, str]
    method: str
    seed: int
    batch: int | None
    workers: int | None
    options: Mapping[str, Any]

    def identity(self) -> dict[str, Any]:
        """Return all settings that the answer depends on, except size and epochs, which are in the names of the networks."""
        task, weights = (
            self.task,
            {name: read_backbone(path).weights for name, path in self.starts.items()},
        )
        return dict(
            how=dict(
                method=self.method,
                seed=self.seed,
                batch=self.batch,
                options=config_identity(self.options),
            ),
            weights={name: weights_identity(state) for name, state in weights.items()},
            images=files_identity(task.paths(task.names), task.root),
            labels=key_of(
                dict(
                    names=task.labelled,
                    y=task.y.tolist(),
                    test=task.test.tolist(),
                    channels=task.channels,
                )
            ),
            unlabelled=key_of(dict(names=task.unlabelled)),
        )

    def start(self, name: str) -> str | None:
        """Return the external weights from which the pre-training `name` starts, or None if it starts from scratch."""
        return self.starts.get(name.removeprefix(f'{OWN} from '))

    def shape(self, size: int, start: str | None) -> dict[str, Any]:
        return dict(
            size=size,
            batch=self.batch,
            workers=self.workers,
            channels=self.task.channels,
            weights=start,
        )

    def config(self, size: int | None, start: str | None = None, epochs: int | None = 1) -> Config:
        """Return the config that `pretrain` uses."""
        options = {
            'train_dataloader.persistent_workers': False,
            **self.options,
            'log_level': 'ERROR',
        }
        images = len(self.task.unlabelled)
        return config_for(
            self.method,
            images,
            self.out / 'images',
            options,
            epochs=epochs,
            **self.shape(size, start),
        )

    def train_own(self, name: str, plan: Plan) -> tuple[Path, float]:
        """Train, or resume an interrupted training. Return the last checkpoint and the duration of training in seconds."""
        words = re.sub(r'\W+', '_', f'{name} {plan.size} {plan.epochs}')
        # The folder includes a hash of the name, because two names may differ only in punctuation.
        folder = self.out / 'networks' / f'{words}_{key_of(dict(name=name))[:6]}'
        checkpoint, note = folder / f'epoch_{plan.epochs}.pth', folder / 'seconds.json'
        previous_seconds, began = (
            read_json(note, float) if note.is_file() else 0.0,
            time.monotonic(),
        )
        if checkpoint.is_file():
            return checkpoint, previous_seconds
        settings = dict(seed=self.seed, resume=True, options={'log_level': 'ERROR', **self.options})
        try:
            with warnings.catch_warnings():
                # Warnings about the speed, such as a warning that there is no GPU, do not help: the plan states the speed.
                warnings.simplefilter('ignore')
                shape = self.shape(plan.size, self.start(name))
                pretrain(self.method, self.out / 'images', folder, plan.epochs, **shape, **settings)
        finally:
            write_json(note, previous_seconds + time.monotonic() - began)
        return checkpoint, read_json(note, float)

    def load_untrained(self, name: str, size: int) -> Network:
        """Return the network of a candidate without pre-training."""
        if name in self.starts:
            return network(self.starts[name], self.task.channels)
        if name == RAW:
            channels = self.task.channels or 3
            return None, dict(mean=[0.5] * channels, std=[0.25] * channels), central(PIXELS)
        cfg = self.config(size)
        normal = {key: cfg.model.data_preprocessor[key] for key in ('mean', 'std')}
        return load_backbone(cfg, None, seed=self.seed), normal, central(size)

    def extraction(self, normal: Mapping[str, Any]) -> Extraction:
        return Extraction(
            **normal, batch_size=BATCH, device=default_device(), workers=self.workers or 0
        )

    def features(
        self, module: nn.Module | None, normal: Mapping[str, Any], views: Views
    ) -> np.ndarray:
        """Return the features of all labeled images (NaN for unreadable images), from a cache if the inputs are the same."""
        weights = (
            'pixels' if module is None else [weights_identity(module.state_dict()), repr(module)]
        )
        content = files_identity(self.task.paths(self.task.labelled), self.task.root)
        key = key_of(
            dict(weights=weights, normal=normal, views=views, images=content, code=code_identity())
        )
        path = self.out / 'features' / f'{key}.npy'
        stored(path, module, self.task.dataset(views), self.extraction(normal))
        return read_rows(path, len(self.task.labelled)).double().numpy()

    def make_plan(self, size: int | None, epochs: int | None, minutes: float | None) -> Plan:
        """Return a plan with the expected time of each stage. If a plan for the same arguments is stored, return this plan.

        Settings that are None are selected by the measured speed and the time budget.
        """
        request, path, task = (
            dict(size=size, epochs=epochs, minutes=minutes),
            self.out / 'plan.json',
            self.task,
        )
        if path.is_file() and (plan := read_json(path, Plan)).asked == request:
            return plan
        print('measuring the speed', file=sys.stderr, flush=True)
        labelled_count = len(task.labelled)
        sample_places = (
            np.linspace(0, labelled_count - 1, min(LOOKED_AT, labelled_count)).round().astype(int)
        )
        own_names = (OWN, *(f'{OWN} from {name}' for name in self.starts))
        other_names = (RAW, RANDOM, *self.starts)
        sample = Readable(task.dataset([[]], sample_places))
        side = min(
            SIZES[-1],
            int(
                np.median(
                    [
                        min(sample[place]['inputs'][0].shape[1:])
                        for place in range(len(sample_places))
                    ]
                )
            ),
        )
        sizes = [each for each in SIZES if each <= side] if minutes and not size else [size or side]
        chosen_size, an_epoch, affordable = 0, {}, 0
        for crop in sizes or [side]:  # small crops, which are faster, come first
            paces = {
                name: len(task.unlabelled) * pace(self.config(crop, self.start(name)))
                for name in own_names
            }
            times = int(SHARE * 60 * (minutes or 0) / sum(paces.values()))
            if chosen_size and times < (epochs or ENOUGH):
                break
            chosen_size, an_epoch, affordable = crop, paces, times
        epochs = epochs or (max(1, min(MOST, affordable)) if minutes else EPOCHS)
        a_draw, seconds = pace_of_draws(task), {}
        affordable_draws = OF_DRAWS * 60 * (minutes or 0) / a_draw / len([*other_names, *own_names])
        draws = int(np.clip(affordable_draws, *BUDGETED)) if minutes else DRAWS
        for name in other_names:
            module, normal, views = self.load_untrained(name, chosen_size)
            began = time.perf_counter()
            list(self.extraction(normal).batches(module, task.dataset(views, sample_places)))
            seconds[name] = (time.perf_counter() - began) / len(sample_places) * len(
                task.labelled
            ) + draws * a_draw
        for name, each in an_epoch.items():
            seconds[name] = (
                seconds[name.removeprefix(f'{OWN} from ') if self.start(name) else RANDOM]
                + epochs * each
            )
        plan = Plan(request, chosen_size, epochs, seconds, draws)
        write_json(path, plan)
        return plan


@cleared_frames()
def worth(
    images: str | Path,
    labels: str | Path | None = None,
    out: str | Path = 'work_dirs/worth',
    *,
    column: str | None = None,
    weights: str | Path | Sequence[str | Path] = (),
    method: str = 'mocov2plus',
    minutes: float | None = None,
    size: int | None = None,
    epochs: int | None = None,
    groups: Groups | None = None,
    batch: int | None = None,
    workers: int | None = None,
    channels: int | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    plan: bool = False,
) -> Worth | Plan:
    """Find out whether pre-training pays on these images, and write a page and a JSON file with the evidence.

    The same classifier is trained with few labels on the features of each candidate: raw pixels, a random network, external
    weights, pre-training from scratch, and pre-training from each of the external weights. Half of the labeled images are
    test images, and pre-training does not use them. All results are stored in `out`. After an interruption, repeat the call
    to resume.

    Args:
        images: Folder of images at any depth.
        labels: CSV with names of images in the first column. Default: folders are classes.
        out: Folder for networks, features, `worth.html` and `worth.json`.
        column: Header of the column of classes in that CSV. Default: the second.
        weights: Checkpoints of ResNets or ViTs, as `torchvision:resnet50` or files.
        method: Method of pre-training.
        minutes: Time budget. It determines the draws of labels and, unless they are set, the size of crops and the epochs.
        size: Side of the crops in pixels. Default: the side of the images, at most 224.
        epochs: Number of epochs of pre-training. Default: 100.
        groups: Groups, such as patients or flights, that stay on one side of the split (`mmairl.data.splits.groups_of`).
        batch: Images per step of pre-training.
        workers: Processes that load images.
        channels: Read images as they are stored, with this number of channels. Default: 8-bit RGB.
        seed: Seed of the split, the draws of labels and pre-training.
        options: Config keys of pre-training, as for `--cfg-options`.
        plan: Whether to only measure the speed and return the plan.

    Raises:
        UserError: If labels are missing or wrong, or if there are too few images.

    Example:
        >>> print(worth('images/', labels='labels.csv', weights=['torchvision:resnet50']))  # doctest: +SKIP
        Pre-train your own: ...
    """
    register()
    task, out = read_task(images, labels, channels, groups, seed, column), Path(out)
    links = (out / 'images').resolve()
    if links.is_relative_to(task.root) or task.root.is_relative_to(links):
        raise UserError(
            f'{out}/images: links to images would be among the images of {images}; use another folder (--work-dir)',
            code='links-among-images',
        )
    weights = [weights] if isinstance(weights, str | Path) else weights
    starts = dict(zip(short_names([Path(file).absolute() for file in weights]), map(str, weights)))
    comparison = Comparison(task, out, starts, method, seed, batch, workers, options or {})
    if minutes is not None and not (isinstance(minutes, Real) and 0 < minutes < math.inf):
        raise UserError(
            f'minutes: expected a positive number ({minutes!r}); set it, or leave it out',
            code='bad-minutes',
        )
    if workers is not None and workers < 0:
        raise UserError(
            f'workers: must not be negative ({workers}); set 0 or more', code='bad-workers'
        )
    # Check the other arguments before anything is written.
    comparison.config(SIZES[0] if size is None else size, epochs=epochs)
    claim(out, comparison.identity(), ('worth.json',))
    lay_out(task, out / 'images')
    selected = comparison.make_plan(size, epochs, minutes)
    if plan:
        return selected
    for remark in selected.remarks:
        print(f'remark: {remark}', file=sys.stderr, flush=True)
    right: dict[str, np.ndarray] = {}
    own_networks: dict[str, tuple[Path, float]] = {}
    for name in run_stages(selected):
        if name.startswith(OWN):
            own_networks[name] = comparison.train_own(name, selected)
        parts = (
            network(own_networks[name][0])
            if name in own_networks
            else comparison.load_untrained(name, selected.size)
        )
        x = comparison.features(*parts)
        if name == RAW:
            task, left_out = testable(task, x, workers or 0)
            points = draw(task.y, task.pool, seed, selected.draws, task.groups)
        right[name] = classify_by_draw(
            standardize(np.nan_to_num(x), task.pool), task.y, points, task.test
        )
    record = build_record(task, right, np.array([*points]), own_networks, selected, seed)
    record |= dict(
        margin=MARGIN,
        enough=ENOUGH,
        **left_out,
        plan=msgspec.to_builtins(selected),
        remarks=selected.remarks,
    )
    write_json(out / 'worth.json', record)
    return Worth(record, write_worth_page(record, out / 'worth.html'))


def pace(cfg: Config) -> float:
    """Return the seconds of training per image, measured over two steps, or over eight if a step is fast."""
    for steps in STEPS:
        cfg = Config(cfg.to_dict())
        cfg.train_cfg, cfg.param_scheduler = dict(by_epoch=False, max_iters=steps), None
        with (
            TemporaryDirectory() as folder,
            redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter('ignore')
            cfg.work_dir = folder
            times = train(cfg).message_hub.log_scalars['train/time']
        step = float(times.mean(steps - 1))
        if step > SLOW:
            break
    return step / cfg.total_batch_size


def pace_of_draws(task: Task) -> float:
    """Return the seconds that one draw of labels takes for a candidate, estimated from the classifier with all labels."""
    x = np.random.default_rng(0).normal(size=(len(task.y), min(512, len(task.y))))
    began = time.perf_counter()
    classify_correctly(x, task.y, task.pool, task.test)
    return (time.perf_counter() - began) * (len(draw(task.y, task.pool, 0, 1, task.groups)) - 1)


def run_stages(plan: Plan) -> Iterator[str]:
    """Yield the names of the stages, and print the remaining time before each."""
    for place, (name, seconds) in enumerate(plan.seconds.items()):
        remaining = sum(list(plan.seconds.values())[place:]) / 60
        line = f'{place + 1} of {len(plan.seconds)}: {name}, about {seconds / 60:.1f} minutes; {remaining:.1f} minutes remain'
        print(line, file=sys.stderr, flush=True)
        yield name


def network(checkpoint: str | Path, channels: int | None = None) -> Network:
    """Return the network of a checkpoint, with its first kernels adapted to the channels of the images."""
    cfg, backbone, normal, views, _ = embedding_network(checkpoint)
    if channels and channels != len(normal['mean']):
        cfg.model.backbone.in_channels = channels
        normal = dict(mean=[0.5] * channels, std=[0.25] * channels)
    return load_backbone(cfg, backbone), normal, views


def central(size: int) -> Views:
    return [[dict(type='Resize', size=size * 8 // 7), dict(type='CenterCrop', size=size)]]


def build_record(
    task: Task,
    right: Right,
    labels: np.ndarray,
    own_networks: Mapping[str, tuple[Path, float]],
    plan: Plan,
    seed: int,
) -> dict[str, Any]:
    """Return the answer and the content of its page, as plain values.

    The value of `word` is the answer. The value of `compared` is the verdict that ignores how long the networks were
    trained.
    """
    weight, groups, names = class_weights(task.y[task.test]), task.groups[task.test], list(right)
    own_names, labelled_count = (
        [name for name in names if name.startswith(OWN)],
        len(task.pool) + len(task.test),
    )
    verdict = decide(right, weight, own_names, labelled_count, groups)
    steps = load_checkpoint(own_networks[verdict.own][0])['meta']['iter']
    training = Training(plan.size, plan.epochs, steps)
    means = np.array([100 * (hits * weight).mean((1, 2)) for hits in right.values()])
    samples = bootstrap_accuracies(right, weight, seed, groups)
    low, high = np.percentile(samples, [2.5, 97.5], axis=0)
    own_index, best_index = names.index(verdict.own), names.index(verdict.best)
    own_labels, *other_labels = saved_labels(means, samples, labels, own_index, best_index)
    return dict(
        answer=sentence(
            verdict, means[own_index, -1], means[best_index, -1], len(task.pool), training
        ),
        **asdict(verdict) | dict(word=answer_word(verdict, training)),
        compared=verdict.word,
        training=dict(**asdict(training), text=str(training)),
        labels=labels.tolist(),
        candidates={
            name: dict(
                accuracy=means[i].tolist(),
                low=low[i].tolist(),
                high=high[i].tolist(),
                **(
                    {'checkpoint': str(own_networks[name][0]), 'seconds': own_networks[name][1]}
                    if name in own_networks
                    else {}
                ),
            )
            for i, name in enumerate(names)
        },
        saved=dict(
            labels=own_labels,
            instead_of=[value if np.isfinite(value) else None for value in other_labels],
        ),
        split=dict(
            images=len(task.names),
            pretrained_on=len(task.unlabelled),
            ungrouped=task.ungrouped,
            labelled=len(task.labelled),
            classes=len(task.classes),
            learned_from=len(task.pool),
            tested_on=len(task.test),
            draws=next(iter(right.values())).shape[1],
            seed=seed,
        ),
    )


def answer_word(verdict: Verdict, training: Training) -> str:
    """Return 'pays', 'keep' or 'undecided'. After a short training, the answer is never 'keep'."""
    return 'undecided' if verdict.word == 'keep' and training.epochs < ENOUGH else verdict.word


def sentence(verdict: Verdict, own: float, best: float, labels: int, training: Training) -> str:
    """Return the answer as a sentence. An inconclusive answer states how many labels or epochs are missing."""
    gain = f'{verdict.gain:+.0f} points, 95 % interval {verdict.low:+.0f} to {verdict.high:+.0f}'
    scores = (
        f'with {labels:,} labels, {verdict.own} ({training}) recognizes {own:.0f} % of new images and '
        f'{verdict.best} {best:.0f} % ({gain})'
    )
    word = answer_word(verdict, training)
    if word == 'pays':
        start = verdict.own.partition(' from ')[2]
        return f'Pre-train your own{f", from {start}" * bool(start)}: {scores}.'
    if word == 'keep':
        return f'No, keep {verdict.best}: {scores}.'
    missing = [f'about {verdict.more:,} more labels would decide'] if verdict.more else []
    if training.epochs < ENOUGH:
        missing.append(f'ruling out pre-training requires at least {ENOUGH} epochs')
    return f'Inconclusive: {scores}; {", and ".join(missing)}.'


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count(1, 'epoch'), count(1500, 'step')
    ('1 epoch', '1,500 steps')
    """
    return f'{number:,} {noun}{"s" * (number != 1)}'
