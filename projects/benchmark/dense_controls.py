"""Measure controls for the protocol `segment` on drawn scenes, and the memory and speed of this protocol.

    python -m projects.benchmark.dense_controls scores CHECKPOINT --seeds 5 --out scores.json
    python -m projects.benchmark.dense_controls memory
    python -m projects.benchmark.dense_controls speed

A cell is one position of a feature map. The controls replace the features of cells. One control, an option of the protocol,
permutes the cells within an image. In the last stages of a network, a cell depends on the whole image, so permuted cells
still contain the image's content. Two more controls separate content from position: each cell gets either the mean of its
image's cells, or the features of a cell of another image.
"""

import argparse
import gc
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import torch
from mmengine import Config
from scipy.stats import t
from torch import Tensor

from mmairl.config import load_config
from mmairl.engine.run import register
from mmairl.evaluation import dense_protocol
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.dense_protocol import CellFeatures, flat_cells
from mmairl.evaluation.protocol import Result, evaluate, settings_for
from mmairl.registry import DATASETS

OTHER_SCENES = 100
ROWS = ('trained', 'random weights', 'permuted', "image's mean", 'exchanged')


def scores(checkpoint: str, seeds: int, out: Path) -> None:
    """Measure each of ROWS (the network and its controls) with each seed, and print differences with 95 % intervals."""
    stored_scores = json.loads(out.read_text()) if out.exists() else {}
    for seed in range(seeds):
        for row in ROWS:
            if f'{row}, {seed}' not in stored_scores:
                result = measured(row, checkpoint, seed)
                linear = result.details['linear']
                stored_scores[f'{row}, {seed}'] = [
                    next(iter(result.scores.values())),
                    linear['chance'],
                ]
                out.write_text(json.dumps(stored_scores, indent=1))
    miou = {row: [stored_scores[f'{row}, {seed}'][0] for seed in range(seeds)] for row in ROWS}
    miou['chance'] = [stored_scores[f'trained, {seed}'][1] for seed in range(seeds)]
    for row, values in miou.items():
        print(
            f'{row:16}', *(f'{value:5.1f}' for value in values), f'{statistics.mean(values):7.2f}'
        )
    pairs = [('trained', other) for other in list(miou)[1:]]
    pairs += [('permuted', 'chance'), ('permuted', "image's mean"), ('exchanged', 'chance')]
    for one, other in pairs:
        low, mean, high = interval([a - b for a, b in zip(miou[one], miou[other])])
        print(f'{one} - {other}: {mean:.2f} ({low:.2f} to {high:.2f})')


def measured(row: str, checkpoint: str, seed: int) -> Result:
    """Return the result of `segment` for one of ROWS on the scenes of a seed."""
    cfg = scenes(seed)
    backbone = load_backbone(cfg, None, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        subject = checkpoint
        if row == 'random weights':
            subject = f'{folder}/random.pth'
            state = {f'backbone.{name}': value for name, value in backbone.state_dict().items()}
            torch.save(dict(state_dict=state), subject)
        options = dict(heads=['linear'], seed=seed, permuted=row == 'permuted')
        change = {"image's mean": averaged, 'exchanged': exchanged(cfg, seed)}.get(row)
        with changed_cells(change):
            settings = settings_for('segment', cfg, **options)
            return evaluate(cfg, 'segment', subject, settings=settings)


def scenes(seed: int, train: int = 400, test: int = 150) -> Config:
    cfg = load_config('mmairl::evaluation/scenes_r18.py')
    cfg.evaluation.train.update(seed=2 * seed, count=train)
    cfg.evaluation.test.update(seed=2 * seed + 1, count=test)
    return cfg


Change = Callable[[CellFeatures, Tensor], Tensor]


@contextmanager
def changed_cells(change: Change | None):
    """Apply `change` to the features of cells within the `with` block."""
    plain = CellFeatures.__call__
    if change:
        CellFeatures.__call__ = lambda self, images: change(self, plain(self, images))
    try:
        yield
    finally:
        CellFeatures.__call__ = plain


def averaged(features: CellFeatures, x: Tensor) -> Tensor:
    """Give each cell the mean of its image's cells."""
    return x.mean((2, 3), keepdim=True).expand_as(x)


def exchanged(cfg: Config, seed: int) -> Change:
    """Return a function that gives each cell the features of a random cell of other scenes."""
    random = torch.Generator().manual_seed(seed)
    bank: list[Tensor] = []

    def change(features: CellFeatures, x: Tensor) -> Tensor:
        if not bank:
            # The call of `features` below calls this function again. An empty bank makes that call return x unchanged.
            bank.append(torch.empty(0))
            others = DATASETS.build({**cfg.evaluation.train, 'seed': 10**6 + seed})
            images = [features.protocol.resized(others[row][0]) for row in range(OTHER_SCENES)]
            bank[0] = flat_cells(features(torch.stack(images)))
        if not len(bank[0]):
            return x
        rows = torch.randint(len(bank[0]), (x.numel() // x.shape[1],), generator=random)
        cells = bank[0][rows].view(x.shape[0], *x.shape[2:], x.shape[1])
        return cells.permute(0, 3, 1, 2)

    return change


def interval(differences: list[float]) -> tuple[float, float, float]:
    """Return the lower end of the 95 % interval of the mean, the mean, and the upper end.

    >>> [round(value, 2) for value in interval([1.0, 2.0, 3.0])]
    [-0.48, 2.0, 4.48]
    """
    mean = statistics.mean(differences)
    count = len(differences)
    half = t.ppf(0.975, count - 1) * statistics.stdev(differences) / count**0.5
    return mean - half, mean, mean + half


def memory(sizes: tuple[int, ...] = (100, 100_000)) -> None:
    """Print the peak private memory of `segment` with both heads, for each number of training images.

    Each image has one cell with 2 048 features, from eight layers of a small ViT. With 100 000 images, the k-NN head searches
    100 000 cells, the default maximum.
    """
    register()
    arch = dict(embed_dims=256, num_layers=8, num_heads=4, feedforward_channels=64)
    network = dict(type='mmpretrain.VisionTransformer', arch=arch, img_size=32, patch_size=32)
    options = dict(size=32, layers=list(range(8)), bank=100_000, epochs=1, batch=256)
    for size in sizes:
        gc.collect()
        cfg = scenes(0, size, 20)
        for part in ('train', 'test'):
            cfg.evaluation[part].size = 64
        cfg.model.backbone = network
        settings = settings_for('segment', cfg, **options)
        with peak_memory() as peak:
            result = evaluate(cfg, 'segment', 'random', settings=settings)
        stored = result.details['stored_bytes']
        print(f'{size} images: {peak[0] / 2**20:.0f} MiB, {stored / 2**20:.0f} MiB on disk')


@contextmanager
def peak_memory():
    """Yield a list whose item is the peak private memory within the `with` block (RssAnon, without mapped files) in bytes."""
    peak = [0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            lines = Path('/proc/self/status').read_text().splitlines()
            private = next(line for line in lines if line.startswith('RssAnon'))
            peak[0] = max(peak[0], 1024 * int(private.split()[1]))

    thread = threading.Thread(target=watch)
    thread.start()
    yield peak
    done.set()
    thread.join()


def speed(images: int = 16, rounds: int = 2) -> None:
    """Print the CPU time of an epoch of the linear head, with stored features and with features that the backbone computes."""
    register()
    for name, update in {
        'ResNet-18 of the demo, 64 pixels': {},
        'ResNet-50, 224 pixels': {
            'model.backbone': dict(
                type='mmpretrain.ResNet', depth=50, norm_cfg=dict(type='SyncBN'), _delete_=True
            ),
            'evaluation.settings.segment': dict(size=224, layers=[-1], heads=['linear']),
        },
    }.items():
        cfg = scenes(0, images, 4)
        cfg.merge_from_dict(update)
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(rounds):
            for random_crops in seconds:
                seconds[random_crops].append(head_seconds(cfg, random_crops))
        stored, in_loop = (min(values) for values in seconds.values())
        print(
            f'{name}, per image: {1e3 * stored / images:.1f} ms with stored features, {1e3 * in_loop / images:.1f} ms with '
            f'computed features ({in_loop / stored:.1f} times as long)'
        )


def head_seconds(cfg: Config, random_crops: bool) -> float:
    """Return the CPU seconds of an epoch of the linear head, without the time to extract stored features."""
    seconds: list[float] = []
    plain = dense_protocol.DenseProtocol.trained_heads

    def timed(self, train, features, cells):
        if not random_crops:
            cells.stored  # noqa: B018
        began = time.process_time()
        heads = plain(self, train, features, cells)
        seconds.append(time.process_time() - began)
        return heads

    dense_protocol.DenseProtocol.trained_heads = timed
    try:
        settings = settings_for(
            'segment', cfg, epochs=1, heads=['linear'], random_crops=random_crops, crop=None
        )
        evaluate(cfg, 'segment', 'random', settings=settings)
    finally:
        dense_protocol.DenseProtocol.trained_heads = plain
    return seconds[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument('what', choices=['scores', 'memory', 'speed'])
    parser.add_argument('checkpoint', nargs='?')
    parser.add_argument('--seeds', type=int, default=5)
    parser.add_argument('--out', type=Path, default=Path('scores.json'))
    args = parser.parse_args()
    register()
    if args.what == 'scores':
        scores(args.checkpoint, args.seeds, args.out)
    else:
        dict(memory=memory, speed=speed)[args.what]()


if __name__ == '__main__':
    main()
