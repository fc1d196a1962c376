"""A run from a folder, our shards, WebDataset's and Parquet is the same to the last digit, also when resumed."""

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


def webdataset(folder: ImageFolder, out: Path) -> str:
    wds = pytest.importorskip('webdataset', reason='webdataset is not installed (pip install webdataset)')
    out.mkdir()
    with wds.ShardWriter(f'{out}/part-%06d.tar', maxcount=15, verbose=0) as writer:
        for index in range(len(folder)):
            label = int(folder.labels[index])
            writer.write({'__key__': f'{index:04}', 'png': folder.encoded(index), 'cls': label})
    return f'{out}/part-{{000000..000002}}.tar'


def parquet(folder: ImageFolder, out: Path) -> str:
    datasets = pytest.importorskip('datasets', reason='datasets is not installed (pip install datasets)')
    out.mkdir()
    kinds = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=folder.classes))
    rows = [dict(bytes=folder.encoded(index), path=None) for index in range(len(folder))]
    table = datasets.Dataset.from_dict(dict(image=rows, label=folder.labels.tolist()), features=kinds)
    table.to_parquet(out / 'all.parquet', batch_size=10)
    return str(out)


def config(work_dir: Path, dataset: dict, **options) -> Config:
    """An epoch of four batches of 8 and a rest, with drawn views; two data workers."""
    cfg = resuming.config('workers', str(work_dir), epochs=1, every=2, **options)
    cfg.train_dataloader.dataset = dict(views=[resuming.VIEW] * 2, **dataset)
    return cfg


def test_run_from_shards_equals_that_of_a_folder(tmp_path, own_cache):
    """All that is in its last checkpoint: losses, weights of both networks, queue, optimizer, generators."""
    for at in range(37):
        draw(tmp_path / f'images/class{at % 3}/{at:02}.png', 32, 40)
    whole = resuming.run(config(tmp_path / 'whole', dict(type='ImageFolder', root=str(tmp_path / 'images'))))
    for write in (packed, webdataset, parquet):
        shards = dict(type='Shards', root=write(ImageFolder(tmp_path / 'images'), tmp_path / write.__name__))
        resuming.run(config(tmp_path / 'run' / write.__name__, shards, leave_at=3))
        last = resuming.run(config(tmp_path / 'run' / write.__name__, shards, resume=True))
        resuming.assert_the_same_run(whole, last)
