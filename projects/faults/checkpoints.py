"""Damage checkpoints in ten ways. A reader must raise a clear error or return exactly what was written."""

import io
import os
import pickle
import random
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from torch import nn

from mmairl.checkpoints.load import load_checkpoint
from mmairl.errors import UserError
from projects.faults import damage
from projects.faults.compare import differing


def fuzz_checkpoints(count: int, seed: int, folder: Path) -> dict[str, int]:
    """Damage one checkpoint `count` times, read each, and count the outcomes.

    'refused' counts one-line UserErrors, and 'equal' counts results that equal the undamaged content. 'failed' counts the
    forbidden outcomes: another exception, a different content, or executed code.
    """
    folder.mkdir(parents=True, exist_ok=True)
    original_path, canary, damaged_path = (
        folder / 'whole.pth',
        folder / 'canary',
        folder / 'damaged.pth',
    )
    torch.save(training_checkpoint(seed), original_path)
    content, original, draw = (
        original_path.read_bytes(),
        load_checkpoint(original_path),
        random.Random(seed),
    )
    kinds = {
        **KINDS,
        'hostile pickle': partial(hostile_record, canary=canary),
        'damaged pickle': damaged_pickle,
    }
    counts: Counter[str] = Counter(refused=0, equal=0, failed=0)
    for number in range(count):
        name = list(kinds)[number % len(kinds)]
        damaged_path.write_bytes(kinds[name](content, draw))
        result = outcome(load_checkpoint, damaged_path, original)
        if canary.exists():
            result = 'failed'
            canary.rmdir()
        counts[result] += 1
        counts[f'{name}: {result}'] += 1
        if result == 'failed':
            (folder / f'failed_{number}_{name.replace(" ", "_")}.pth').write_bytes(
                damaged_path.read_bytes()
            )
    damaged_path.unlink(missing_ok=True)
    return dict(counts)


def training_checkpoint(seed: int) -> dict[str, Any]:
    """Return a checkpoint in the format of mmengine's Runner, after three steps of a small network."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 10)
        )
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = network(torch.randn(4, 3, 8, 8)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return dict(
        meta=dict(
            epoch=1,
            iter=3,
            seed=seed,
            cfg="model = dict(type='Siamese')",
            dataset_meta=dict(classes=['a', 'b']),
        ),
        state_dict=OrderedDict(network.state_dict()),
        optimizer=optimizer.state_dict(),
        param_schedulers=[dict(base_values=[0.1], last_step=3, by_epoch=False)],
        message_hub=dict(
            log_scalars=OrderedDict({'train/loss': HistoryBuffer(losses, [1] * len(losses))}),
            runtime_info=OrderedDict(iter=3, max_iters=10, lr=np.float64(0.1)),
            resumed_keys={'train/loss': True},
        ),
    )


def outcome(read: Callable[[Path], dict], path: Path, original: dict) -> str:
    """Return 'refused' if `read` raises a one-line UserError, 'equal' if it returns `original`, and 'failed' otherwise."""
    try:
        return 'failed' if differing(read(path), original, 'checkpoint') else 'equal'
    except UserError as error:
        return 'refused' if '\n' not in str(error) else 'failed'
    except Exception:
        return 'failed'


class Canary:
    """An object whose pickle is a call that creates a folder. If the folder exists, a reader has executed code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def flip_bit_of_the_structure(content: bytes, draw: random.Random) -> bytes:
    """Flip a bit in the central directory at the end of the archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        start = archive.start_dir
    return content[:start] + damage.flip_bit(content[start:], draw)


def hostile_record(content: bytes, draw: random.Random, canary: Path) -> bytes:
    """Return an archive whose pickle calls a function when it is read. All checksums are correct."""
    bomb = Canary(canary)
    if draw.random() < 0.5:
        buffer = io.BytesIO()
        torch.save(
            draw.choice([bomb, dict(state_dict={}, meta=bomb), {'meta': [0, (bomb,)]}]), buffer
        )
        return buffer.getvalue()
    record = pickle.dumps(dict(meta=bomb), protocol=draw.randrange(pickle.HIGHEST_PROTOCOL + 1))
    return with_record(content, '/data.pkl', record)


def damaged_pickle(content: bytes, draw: random.Random) -> bytes:
    """Return the archive with a pickle that ends early or has an inserted byte 0xff. The checksum of the pickle is correct."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        name = next(name for name in archive.namelist() if name.endswith('/data.pkl'))
        record = archive.read(name)
    end = draw.randrange(1, len(record) - 1)
    return with_record(
        content, '/data.pkl', draw.choice([record[:end], record[:end] + b'\xff' + record[end:]])
    )


def with_record(content: bytes, ending: str, record: bytes) -> bytes:
    """Return a copy of the archive in which one record is replaced. All checksums are correct."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(buffer, 'w') as target:
        for name in source.namelist():
            target.writestr(name, record if name.endswith(ending) else source.read(name))
    return buffer.getvalue()


KINDS: dict[str, damage.Damage] = {
    'bit flipped': damage.flip_bit,
    'bit of the structure flipped': flip_bit_of_the_structure,
    'bytes changed': damage.change_bytes,
    'cut': damage.cut,
    'piece cut out': damage.cut_out,
    'extended': damage.extend,
    'blocks swapped': damage.swap_blocks,
    'block of zeros': damage.zero_block,
}
