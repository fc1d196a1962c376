"""A run from packed shards or Parquet is bitwise equal to that from the folder."""

from pathlib import Path

import pytest
from data.archives import draw
from harness import resume as resuming
from mmengine.config import Config

from mmairl.data.datasets import ImageFolder
from mmairl.data.packed import pack


def packed(folder: ImageFolder, out: Path) -> str:
    list(pack(folder, out / 'all.tar', size=20_000))
    return f'{out}/all-*.tar'


def parquet(folder: ImageFolder, out: Path) -> str:
    datasets = pytest.importorskip('datasets', reason='datasets is not installed (pip install datasets)')
    out.mkdir()
    kinds = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=folder.classes))
    rows = [dict(bytes=folder.encoded(index), path=None) for index in range(len(folder))]
    table = datasets.Dataset.from_dict(dict(image=rows, label=folder.labels.tolist()), features=kinds)
    table.to_parquet(out / 'all.parquet', batch_size=10)
    return str(out)


def config(work_dir: Path, dataset: dict) -> Config:
    """Return an epoch of four batches of 8 and a rest, with random views and two data workers."""
    cfg = resuming.config('workers', str(work_dir), epochs=1, every=2)
    cfg.train_dataloader.dataset = dict(views=[resuming.VIEW] * 2, **dataset)
    return cfg


@pytest.mark.parametrize('write', [packed, pytest.param(parquet, marks=pytest.mark.slow)])
def test_run_from_shards_equals_that_of_a_folder(tmp_path, own_cache, write):
    """Compare the last checkpoints: losses, weights of both networks, queue, optimizer, generators."""
    for at in range(37):
        draw(tmp_path / f'images/class{at % 3}/{at:02}.png', 32, 40)
    whole = resuming.run(config(tmp_path / 'whole', dict(type='ImageFolder', root=str(tmp_path / 'images'))))
    shards = dict(type='Shards', root=write(ImageFolder(tmp_path / 'images'), tmp_path / 'shards'))
    resuming.assert_the_same_run(whole, resuming.run(config(tmp_path / 'run', shards)))
