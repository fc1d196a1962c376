"""Checkpoints damaged in every way we can think of: each is refused in a sentence or read exactly as it was written."""

import io
import os
import pickle
import random
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from torch import Tensor, nn

from mmairl.engine.checkpoint import load_checkpoint
from mmairl.errors import UserError
from mmairl.weights.read import load_file

Mutation = Callable[[bytes, random.Random, Path], bytes]


def fuzz_checkpoints(count: int, seed: int, folder: Path) -> dict[str, int]:
    """Damage one checkpoint `count` times and read each with both readers; how often which outcome came.

    'failed' counts what must not be: another exception, other content than was written, or code that has run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    whole, canary, made = folder / 'whole.pth', folder / 'canary', folder / 'damaged.pth'
    torch.save(training_checkpoint(seed), whole)
    content, original, draw = whole.read_bytes(), load_checkpoint(whole), random.Random(seed)
    found: Counter[str] = Counter(refused=0, equal=0, failed=0)
    for number in range(count):
        name, mutate = MUTATIONS[number % len(MUTATIONS)]
        made.write_bytes(mutate(content, draw, canary))
        outcomes = [outcome(read, made, original) for read in (load_checkpoint, load_file)]
        if canary.exists():
            outcomes = ['failed'] * len(outcomes)
            canary.rmdir()
        for result in outcomes:
            found[result] += 1
            found[f'{name}: {result}'] += 1
            if result == 'failed':
                (folder / f'failed_{number}_{name.replace(" ", "_")}.pth').write_bytes(made.read_bytes())
    made.unlink(missing_ok=True)
    return dict(found)


def training_checkpoint(seed: int) -> dict[str, Any]:
    """What a checkpoint of mmengine's runner holds, after three steps of a small network."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 10))
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
            epoch=1, iter=3, seed=seed, cfg="model = dict(type='Siamese')", dataset_meta=dict(classes=['a', 'b'])
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
    """Refused in one sentence, read exactly as written, or failed."""
    try:
        return 'equal' if same(read(path), original) else 'failed'
    except UserError as error:
        return 'refused' if '\n' not in str(error) else 'failed'
    except Exception:
        return 'failed'


def same(ours: Any, theirs: Any) -> bool:
    """Equal to the bit and to the type, at any depth."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, Tensor):
        return ours.dtype == theirs.dtype and ours.shape == theirs.shape and torch.equal(ours, theirs)
    if isinstance(ours, np.ndarray):
        return ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, HistoryBuffer):
        return same(vars(ours), vars(theirs))
    return ours == theirs


class Canary:
    """Pickles as a call that makes a folder, which is how one sees that a reader has run what it was given."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def flip_bit(content: bytes, draw: random.Random, canary: Path) -> bytes:
    at, bit = draw.randrange(len(content)), 1 << draw.randrange(8)
    return content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]


def flip_bit_of_the_structure(content: bytes, draw: random.Random, canary: Path) -> bytes:
    """In the list of records and what follows it, which is a small part of the file and the part that readers trust."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        start = archive.start_dir
    return content[:start] + flip_bit(content[start:], draw, canary)


def change_bytes(content: bytes, draw: random.Random, canary: Path) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.randint(1, 16)):
        changed[draw.randrange(len(changed))] ^= draw.randint(1, 255)
    return bytes(changed)


def cut(content: bytes, draw: random.Random, canary: Path) -> bytes:
    return content[: draw.randrange(len(content))]


def cut_out(content: bytes, draw: random.Random, canary: Path) -> bytes:
    at, length = draw.randrange(len(content)), draw.randint(1, 4096)
    return content[:at] + content[at + length :]


def extend(content: bytes, draw: random.Random, canary: Path) -> bytes:
    added = draw.randbytes(draw.randint(1, 4096))
    at = draw.choice([0, draw.randrange(len(content)), len(content)])
    return content[:at] + added + content[at:]


def swap_blocks(content: bytes, draw: random.Random, canary: Path) -> bytes:
    size = draw.choice([64, 512, 1024])
    one, other = sorted(draw.sample(range(len(content) // size), 2))
    blocks = [content[at : at + size] for at in range(0, len(content), size)]
    blocks[one], blocks[other] = blocks[other], blocks[one]
    return b''.join(blocks)


def zero_block(content: bytes, draw: random.Random, canary: Path) -> bytes:
    """As a file system leaves a block that it had promised and not written."""
    size = draw.choice([512, 4096])
    at = draw.randrange(0, len(content), size)
    return content[:at] + bytes(len(content[at : at + size])) + content[at + size :]


def hostile_record(content: bytes, draw: random.Random, canary: Path) -> bytes:
    """A whole archive by every sum, whose pickle asks for a call: alone, or inside what torch itself writes."""
    bomb = Canary(canary)
    if draw.random() < 0.5:
        written = io.BytesIO()
        torch.save(draw.choice([bomb, dict(state_dict={}, meta=bomb), {'meta': [0, (bomb,)]}]), written)
        return written.getvalue()
    pickled = pickle.dumps(dict(meta=bomb), protocol=draw.randrange(pickle.HIGHEST_PROTOCOL + 1))
    return with_record(content, '/data.pkl', pickled)


def damaged_pickle(content: bytes, draw: random.Random, canary: Path) -> bytes:
    """A pickle that ends early or names an unknown code, under a sum that is right: what only the reader can notice."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        name = next(name for name in archive.namelist() if name.endswith('/data.pkl'))
        pickled = archive.read(name)
    end = draw.randrange(1, len(pickled) - 1)
    return with_record(content, '/data.pkl', draw.choice([pickled[:end], pickled[:end] + b'\xff' + pickled[end:]]))


def with_record(content: bytes, ending: str, record: bytes) -> bytes:
    """The same archive with another record in place of one, every sum made right again."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(written, 'w') as target:
        for name in source.namelist():
            target.writestr(name, record if name.endswith(ending) else source.read(name))
    return written.getvalue()


MUTATIONS: list[tuple[str, Mutation]] = [
    ('bit flipped', flip_bit),
    ('bit of the structure flipped', flip_bit_of_the_structure),
    ('bytes changed', change_bytes),
    ('cut', cut),
    ('piece cut out', cut_out),
    ('extended', extend),
    ('blocks swapped', swap_blocks),
    ('block of zeros', zero_block),
    ('hostile pickle', hostile_record),
    ('damaged pickle', damaged_pickle),
]
