"""Does pre-training pay on one's own images? An answer from a folder and some labels, with the curves that it rests on."""

import io
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import torch
from mmengine.config import Config
from torch import nn

from mmairl.data.folders import UnlabelledFolder
from mmairl.data.splits import Groups, groups_of, look_alikes, names_of, read_column, split_by_class
from mmairl.data.views import ViewDataset, Views
from mmairl.engine.launch import register, train
from mmairl.errors import UserError, cleared_frames, printable
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.embed import dataset_of, network_of
from mmairl.evaluation.features import Extraction, Readable, read_rows, stored
from mmairl.evaluation.identity import claim, code_identity, config_identity, files_identity, key_of, weights_identity
from mmairl.evaluation.protocol import default_device
from mmairl.files import read_json, write_json
from mmairl.own.few_labels import (
    DRAWS,
    MARGIN,
    Right,
    Verdict,
    class_weights,
    draw,
    judged,
    prepared,
    recognised,
    recognised_by_draw,
    resampled,
    saved,
)
from mmairl.own.pretrain import pretrain
from mmairl.own.suggest import config_for
from mmairl.report.charts import chart
from mmairl.report.compare_page import names_of as names_of_files
from mmairl.report.page import Page
from mmairl.report.table import html_table
from mmairl.weights.read import read_backbone

SIZES = (32, 48, 64, 96, 128, 160, 224)  # of crops, among which a budget chooses
EPOCHS, ENOUGH, MOST = 100, 100, 800  # by default; that a larger crop must leave time for; and at most
SHARE = 0.8  # of the minutes that are given, for the trainings
TEST = 0.5  # of the labels
PIXELS = 32  # the side of the images whose raw pixels are features
LOOKED_AT, BATCH = 32, 64  # images by which the speed of features is measured, and at a time
STEPS, SLOW = (
    (2, 8),
    2.0,
)  # steps by which that of a training is, the second number where one takes less than so many seconds
RAW, RANDOM, OWN = 'raw pixels', 'random initialisation', 'own pre-training'


@dataclass(frozen=True)
class Worth:
    """The answer: its record, as in worth.json, and its page."""

    record: dict[str, Any]
    page: Path

    def __str__(self) -> str:
        return self.record['answer']


class Plan(msgspec.Struct):
    """The wish, the side of the crops, the epochs, and the seconds that each stage will take here."""

    asked: dict[str, float | None]
    size: int
    epochs: int
    seconds: dict[str, float]

    def __str__(self) -> str:
        lines = [f'{seconds / 60:8.1f} minutes  {stage}' for stage, seconds in self.seconds.items()]
        total = f'{sum(self.seconds.values()) / 60:8.1f} minutes in all, by the speed that was measured here'
        return '\n'.join([*lines, total, f'own pre-training: crops of {self.size} pixels, {self.epochs} epochs'])


@dataclass(frozen=True)
class Task:
    """The images by their names below the root, which of them have labels, and what is learned from and tested on."""

    root: Path
    names: list[str]
    labelled: list[str]
    y: np.ndarray
    classes: list[str]
    pool: np.ndarray  # positions in `labelled`
    test: np.ndarray
    unlabelled: list[str]  # for pre-training: all but the test images and those of their groups
    channels: int | None

    def paths(self, names: Sequence[str]) -> list[Path]:
        return [self.root / name for name in names]

    def dataset(self, views: Views, places: Sequence[int] | None = None) -> ViewDataset:
        """Return the labelled images, or those at some places."""
        places = np.arange(len(self.labelled)) if places is None else places
        dataset = dataset_of(self.paths([self.labelled[place] for place in places]), views, self.channels)
        dataset.labels = torch.from_numpy(self.y[places])
        return dataset


@dataclass(frozen=True)
class How:
    """How the own pre-training is done, as `pretrain` has it."""

    method: str
    seed: int
    batch: int | None
    workers: int | None
    channels: int | None
    options: Mapping[str, Any]

    def shape(self, size: int, start: str | None) -> dict[str, Any]:
        return dict(size=size, batch=self.batch, workers=self.workers, channels=self.channels, weights=start)


@cleared_frames()
def worth(
    images: str | Path,
    labels: str | Path | None = None,
    out: str | Path = 'work_dirs/worth',
    *,
    weights: Sequence[str | Path] = (),
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
    """Say whether pre-training pays on the images, and write a page and a JSON file of what the answer rests on.

    Raw pixels, a random network, the given weights, own pre-training, and own pre-training that goes on from each of these
    weights are compared by one classifier that learns from few labels. Half of the labelled images are put aside to test
    on, and are in no pre-training. What was computed stays in `out`, and the same call goes on from there.

    Args:
        images: a folder of images at any depth.
        labels: a CSV, images' names in the first column and classes in the second; without it folders are classes.
        out: where networks, features, `worth.html` and `worth.json` go.
        weights: checkpoints of ResNets, as `torchvision:resnet50` or files.
        method: of the own pre-training.
        minutes: what it may take; it chooses the size of the crops and the epochs, unless they are given.
        size: the side of the crops; by default that of the images, 224 at most.
        epochs: how often pre-training sees each image, 100 by default.
        groups: keep a patient or a flight on one side (`mmairl.data.splits.groups_of`).
        batch: images in a step of pre-training.
        workers: processes that load images.
        channels: of images that are read as they are stored.
        seed: of the split, the draws of labels and the pre-training.
        options: config keys of the pre-training, as `--cfg-options` has them.
        plan: measure the speed, and return how long it will take.

    >>> print(mmairl.worth('images/', labels='labels.csv', weights=['torchvision:resnet50']))  # doctest: +SKIP
    Pre-train your own: ...
    """
    register()
    task, out = read_task(images, labels, channels, groups, seed), Path(out)
    how = How(method, seed, batch, workers, channels, options or {})
    starts = dict(zip(names_of_files([Path(file).absolute() for file in weights]), map(str, weights)))
    identity = dict(
        how=config_identity(msgspec.to_builtins(how)),
        weights={name: weights_identity(read_backbone(path).weights) for name, path in starts.items()},
        images=files_identity([str(path) for path in task.paths(task.names)], task.root),
        labels=key_of(dict(names=task.labelled, y=task.y.tolist(), test=task.test.tolist())),
    )
    claim(out, identity, ('worth.json',))
    lay_out(task, out / 'images')
    chosen = planned(task, out, starts, how, dict(size=size, epochs=epochs, minutes=minutes))
    if plan:
        return chosen
    right: dict[str, np.ndarray] = {}
    own: dict[str, tuple[Path, float]] = {}
    for name in announced(chosen):
        if name.startswith(OWN):
            own[name] = own_network(name, out, starts, how, chosen)
            x = features(task, out, how, *network(own[name][0]))
        else:
            x = features(task, out, how, *untrained(name, task, out, starts, how, chosen.size))
        if name == RAW:
            task, alike = testable(task, x, workers or 0)
            points = draw(task.y, task.pool, seed)
        right[name] = recognised_by_draw(prepared(np.nan_to_num(x), task.pool), task.y, points, task.test)
    record = recorded(task, right, np.array([*points]), own, chosen, seed)
    record['split']['look_alikes'] = alike
    write_json(out / 'worth.json', record)
    return Worth(record, write_worth_page(record, out / 'worth.html'))


def read_task(
    images: str | Path, labels: str | Path | None, channels: int | None, groups: Groups | None, seed: int
) -> Task:
    """Return the images with their labels, split by class and where there are groups by these."""
    if not Path(images).is_dir():
        raise UserError(f'there is no folder of images at {Path(images).resolve()}; check the path')
    names = names_of(UnlabelledFolder(images, channels=channels))
    given = by_folder(names) if labels is None else by_table(names, labels, images)
    count = Counter(given.values())
    if few := [label for label, many in count.items() if many < 2]:
        raise UserError(
            f"class '{printable(few[0])}' has one labelled image, and one is needed to learn from and one to test on; "
            'label another, or leave the class out'
        )
    if len(count) < 2:
        where = 'in the folders below' if labels is None else f'in {labels} for'
        raise UserError(f'there are {len(count)} classes {where} {images}; give labels of two classes or more')
    labelled, classes = sorted(given), sorted(count)
    y = np.array([classes.index(given[name]) for name in labelled])
    own = groups and dict(zip(names, groups_of(names, groups)))
    parts = split_by_class(torch.from_numpy(y), seed, TEST, own and [own[name] for name in labelled])
    pool, test = (part.sort().values.numpy() for part in parts)
    tested = {own[labelled[place]] if own else labelled[place] for place in test}
    kept = [name for name in names if (own[name] if own else name) not in tested]
    return Task(Path(images).resolve(), names, labelled, y, classes, pool, test, kept, channels)


def by_folder(names: Sequence[str]) -> dict[str, str]:
    """Return the uppermost folder of each image that lies in one."""
    return {name: name.partition('/')[0] for name in names if '/' in name}


def by_table(names: Sequence[str], labels: str | Path, images: str | Path) -> dict[str, str]:
    """Return the label of each image that the table names, by its path below the folder or, where that is enough, its name."""
    alone = Counter(Path(name).name for name in names)
    known = {Path(name).name: name for name in names if alone[Path(name).name] == 1} | {name: name for name in names}
    table = [(name.removeprefix('./'), label.strip()) for name, label in read_column(labels).items() if label.strip()]
    if missing := [name for name, _ in table if name not in known]:
        raise UserError(
            f'{labels} has labels for {len(missing)} files that are not below {images}, first '
            f"'{printable(missing[0])}', where images are named like '{printable(names[0])}'; correct the names"
        )
    given: dict[str, str] = {}
    for name, label in table:
        if given.setdefault(known[name], label) != label:
            raise UserError(
                f"{labels} says '{given[known[name]]}' and '{label}' of {printable(known[name])}; keep one line of it"
            )
    return given


def lay_out(task: Task, folder: Path) -> None:
    """Fill a folder with links to the images of the own pre-training."""
    for name in task.unlabelled:
        link = folder / name
        if not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(task.root / name)


def testable(task: Task, x: np.ndarray, workers: int) -> tuple[Task, int]:
    """Leave out labelled images that cannot be read, and count and leave out test images that look like one to learn from."""
    fine = ~np.isnan(x[:, 0])
    if (x[fine] == x[fine][0]).all():
        raise UserError(f'the {fine.sum()} labelled images below {task.root} are all alike; give others')
    pool, test = task.pool[fine[task.pool]], task.test[fine[task.test]]
    alike = look_alikes(*(task.dataset([[]], places) for places in (pool, test)), workers)
    if len(alike) == len(test):
        raise UserError(f'each test image below {task.root} looks like one to learn from; take copies out')
    return replace(task, pool=pool, test=np.delete(test, [*alike])), len(alike)


def planned(task: Task, out: Path, starts: Mapping[str, str], how: How, asked: dict[str, Any]) -> Plan:
    """Measure the speed of each stage, or read what was measured for the same wish; choose what is not given."""
    if (out / 'plan.json').is_file() and (plan := read_json(out / 'plan.json', Plan)).asked == asked:
        return plan
    print('measuring the speed', file=sys.stderr, flush=True)
    trained = {OWN: None, **{f'{OWN} from {name}': path for name, path in starts.items()}}
    some = range(min(LOOKED_AT, len(task.labelled)))
    few = Readable(task.dataset([[]], some))
    sides = [min(few[place]['inputs'][0].shape[1:]) for place in range(len(few))]
    side, minutes, size = min(SIZES[-1], int(np.median(sides))), asked['minutes'], 0
    sizes = [size for size in SIZES if size <= side] if minutes and not asked['size'] else [asked['size'] or side]
    for tried in sizes or [side]:  # from the fastest on
        paces = {
            name: len(task.unlabelled) * seconds_an_image(own_config(out, task, how, tried, 1, start))
            for name, start in trained.items()
        }
        affordable = int(SHARE * 60 * (minutes or 0) / sum(paces.values()))
        if size and affordable < (asked['epochs'] or ENOUGH):
            break
        size, an_epoch = tried, paces
        epochs = asked['epochs'] or (max(1, min(MOST, affordable)) if minutes else EPOCHS)
    seconds: dict[str, float] = {}
    for name in (RAW, RANDOM, *starts):
        module, normal, views = untrained(name, task, out, starts, how, size)
        began, few = time.perf_counter(), task.dataset(views, some)
        list(extraction(normal, how).batches(module, few))
        seconds[name] = (time.perf_counter() - began) / len(few) * len(task.labelled)
    for name, pace in an_epoch.items():
        seconds[name] = seconds[name.removeprefix(f'{OWN} from ') if trained[name] else RANDOM] + epochs * pace
    plan = Plan(asked, size, epochs, {name: value + seconds_of_draws(task) for name, value in seconds.items()})
    write_json(out / 'plan.json', plan)
    return plan


def seconds_an_image(cfg: Config) -> float:
    """Run two steps, and more where they are fast, and return the seconds that an image of them takes."""
    for steps in STEPS:
        cfg = Config(cfg.to_dict())
        cfg.train_cfg, cfg.param_scheduler = dict(by_epoch=False, max_iters=steps), None
        with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
            cfg.work_dir = folder
            times = train(cfg).message_hub.log_scalars['train/time']
        step = float(times.mean(steps - 1))
        if step > SLOW:
            break
    return step / cfg.total_batch_size


def seconds_of_draws(task: Task) -> float:
    """Return what the classifiers of a candidate take, by the one with all labels."""
    x = np.random.default_rng(0).normal(size=(len(task.y), min(512, len(task.y))))
    began = time.perf_counter()
    recognised(x, task.y, task.pool, task.test)
    return (time.perf_counter() - began) * DRAWS * (len(draw(task.y, task.pool, 0, 1)) - 1)


def announced(plan: Plan) -> Iterator[str]:
    """Yield the stages, and say before each what time is left; pre-training and features have a bar of their own."""
    for place, (name, seconds) in enumerate(plan.seconds.items()):
        left = sum(list(plan.seconds.values())[place:]) / 60
        said = f'{place + 1} of {len(plan.seconds)}: {name}, about {seconds / 60:.1f} minutes; {left:.1f} left in all'
        print(said, file=sys.stderr, flush=True)
        yield name


def own_config(out: Path, task: Task, how: How, size: int, epochs: int, start: str | None) -> Config:
    """Return the config that `pretrain` trains by."""
    options = {'train_dataloader.persistent_workers': False, **how.options, 'log_level': 'ERROR'}
    images = len(task.unlabelled)
    return config_for(how.method, images, out / 'images', options, epochs=epochs, **how.shape(size, start))


def own_network(name: str, out: Path, starts: Mapping[str, str], how: How, plan: Plan) -> tuple[Path, float]:
    """Return the last checkpoint of the own pre-training and its seconds; train, or go on, where it is not there."""
    start = starts.get(name.removeprefix(f'{OWN} from '))
    folder = out / 'networks' / re.sub(r'\W+', '_', f'{name} {plan.size} {plan.epochs}')
    last, note = folder / f'epoch_{plan.epochs}.pth', folder / 'seconds.json'
    before = read_json(note, float) if note.is_file() else 0.0
    if last.is_file():
        return last, before
    began = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # there is no GPU, say, which the plan has told in minutes
            options = {'log_level': 'ERROR', **how.options}
            where = how.method, out / 'images', folder, plan.epochs
            pretrain(*where, **how.shape(plan.size, start), seed=how.seed, resume=True, options=options)
    finally:
        write_json(note, before + time.monotonic() - began)
    return last, read_json(note, float)


def untrained(
    name: str, task: Task, out: Path, starts: Mapping[str, str], how: How, size: int
) -> tuple[nn.Module | None, dict, Views]:
    """Return a candidate that needs no training: its network, and the statistics and the view of its images."""
    if name in starts:
        return network(starts[name])
    if name == RAW:
        channels = how.channels or 3
        return None, dict(mean=[0.5] * channels, std=[0.25] * channels), central(PIXELS)
    cfg = own_config(out, task, how, size, 1, None)
    normal = {key: cfg.model.data_preprocessor[key] for key in ('mean', 'std')}
    return load_backbone(cfg, None, seed=how.seed), normal, central(size)


def network(checkpoint: str | Path) -> tuple[nn.Module, dict, Views]:
    """Return a checkpoint's network, and the statistics and the view of its images."""
    cfg, backbone, normal, views, _ = network_of(checkpoint, 'student', None, None)
    return load_backbone(cfg, backbone), normal, views


def central(size: int) -> Views:
    return [[dict(type='Resize', size=size * 8 // 7), dict(type='CenterCrop', size=size)]]


def extraction(normal: Mapping[str, Any], how: How) -> Extraction:
    return Extraction(**normal, batch_size=BATCH, device=default_device(), workers=how.workers or 0)


def features(task: Task, out: Path, how: How, module: nn.Module | None, normal: dict, views: Views) -> np.ndarray:
    """Return the features of all labelled images, NaN of those that cannot be read; kept under what they depend on."""
    weights = 'pixels' if module is None else [weights_identity(module.state_dict()), repr(module)]
    content = files_identity([str(path) for path in task.paths(task.labelled)], task.root)
    key = key_of(dict(weights=weights, normal=normal, views=views, images=content, code=code_identity()))
    path = out / 'features' / f'{key}.npy'
    stored(path, module, task.dataset(views), extraction(normal, how))
    return read_rows(path, len(task.labelled)).double().numpy()


def recorded(
    task: Task, right: Right, labels: np.ndarray, trained: Mapping[str, tuple[Path, float]], plan: Plan, seed: int
) -> dict[str, Any]:
    """Return the answer and all that is on its page, as plain values."""
    weight, names = class_weights(task.y[task.test]), list(right)
    said = judged(right, weight, [name for name in names if name.startswith(OWN)], len(task.pool) + len(task.test))
    means = np.array([100 * (of * weight).mean((1, 2)) for of in right.values()])
    samples = resampled(right, weight, seed)
    low, high = np.percentile(samples, [2.5, 97.5], axis=0)
    own, best = names.index(said.own), names.index(said.best)
    few, *many = saved(means, samples, labels, own, best)
    return dict(
        answer=sentence(said, means[own, -1], means[best, -1], len(task.pool)),
        **asdict(said),
        labels=labels.tolist(),
        candidates={
            name: dict(
                accuracy=means[i].tolist(),
                low=low[i].tolist(),
                high=high[i].tolist(),
                **({'checkpoint': str(trained[name][0]), 'seconds': trained[name][1]} if name in trained else {}),
            )
            for i, name in enumerate(names)
        },
        saved=dict(labels=few, instead_of=[value if np.isfinite(value) else None for value in many]),
        split=dict(
            images=len(task.names),
            pretrained_on=len(task.unlabelled),
            classes=len(task.classes),
            learned_from=len(task.pool),
            tested_on=len(task.test),
            draws=DRAWS,
            seed=seed,
        ),
        plan=msgspec.to_builtins(plan),
    )


def sentence(said: Verdict, own: float, best: float, labels: int) -> str:
    """Return the answer."""
    scores = f'with {labels:,} labels, {said.own} recognises {own:.0f} % of new images and {said.best} {best:.0f} %'
    between = f'{said.gain:+.0f} points, 95 % interval {said.low:+.0f} to {said.high:+.0f}'
    if said.word == 'undecided':
        return f'Not decided: {scores} ({between}); about {said.more:,} more labels would tell.'
    start = said.own.partition(' from ')[2]
    head = f'Pre-train your own{f", from {start}" * bool(start)}' if said.word == 'pays' else f'No, keep {said.best}'
    return f'{head}: {scores} ({between}).'


def write_worth_page(record: Mapping[str, Any], path: Path) -> Path:
    """Write the page: the answer, the learning curves, what labels and time cost, and how it was found."""
    head, _, rest = record['answer'].partition(': ')
    page, split, found = Page(f'{head}.', f'{rest[0].upper()}{rest[1:]}'), record['split'], record['candidates']
    curves = {name: (record['labels'], of['accuracy'], of['low'], of['high']) for name, of in found.items()}
    page.add(
        'How many of 100 new images are recognised?',
        'A line that lies higher needs fewer labels. The bands are 95 % intervals: how far other draws of as many labels and '
        'other test images could move a line.',
        chart(curves, 'recognised, %', 'labels of each class', log='x', wide=True),
        f'Chance is {100 / split["classes"]:.0f} %. Each class counts the same.',
    )
    columns = [f'{labels:.0f} a class' for labels in record['labels']]
    rows = [
        (
            name,
            [
                *(
                    f'{of["accuracy"][place]:.0f} [{of["low"][place]:.0f}, {of["high"][place]:.0f}]'
                    for place in range(len(columns))
                ),
                f'{of["seconds"] / 60:.1f}' if 'seconds' in of else '–',
            ],
        )
        for name, of in found.items()
    ]
    page.add('What it saves and costs', saving(record), html_table([*columns, 'minutes of training'], rows))
    page.add(
        'What was split how',
        f'Of {split["images"]:,} images, {split["learned_from"] + split["tested_on"]:,} have labels, of {split["classes"]} '
        f'classes. Half of each class, {split["tested_on"]:,}, were put aside to test on, and the own pre-training saw the '
        f'{split["pretrained_on"]:,} others alone. The labels to learn from were drawn {split["draws"]} times from the other '
        'half, the same ones for every line, by the same classifier: ridge regression on the features. '
        f'Test images that look like one to learn from: {split["look_alikes"]}, left out.',
    )
    page.add(
        'When it says so',
        'Own pre-training pays if it is better, with all labels, than everything that needs no training. It does not if it '
        f'is surely less than {MARGIN:g} points better than one of these. If neither is sure, it is not decided. Either answer '
        'is wrong in at most 5 of 100 such studies: one-sided t-tests that count other labels and other test images, with '
        'Holm’s correction for several own pre-trainings, and Bonferroni’s for several to keep.',
    )
    return page.write(path)


def saving(record: Mapping[str, Any]) -> str:
    """Return in a sentence how many labels the leading own pre-training saves."""
    few, (many, low, high) = record['saved']['labels'], record['saved']['instead_of']
    own, best, most = record['own'], record['best'], record['labels'][-1]
    ends = ' to '.join(f'{end:.0f}' if end else f'more than {most:.0f}' for end in (low, high))
    with_few = f'With {few:.0f} label{"s" * (few > 1)} of each class, {own}'
    if many is None:
        return f'{with_few} is better than {best} with all {most:.0f}.'
    return f'{with_few} recognises as many as {best} with {many:.0f} (95 % interval {ends}).'
