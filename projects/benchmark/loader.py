"""Compare how fast mmairl and other libraries read files, decode images and load batches of views."""

import io
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision import datasets
from torchvision.io import decode_jpeg

from mmairl.data.datasets import ImageFolder
from mmairl.data.decode import decode_bytes
from mmairl.data.packed import add, pack
from mmairl.data.shards import Shards
from projects.benchmark.augment import (
    VIEW,
    photograph,
    seeded,
    tensor,
    torchvision_released,
    worker_views,
)
from projects.benchmark.timing import Case

NOTE = (
    "The files are in the system's cache, on a local disk. Packed files are meant for network disks, where opening a file "
    'takes a request to the server; this suite does not measure such disks.'
)
BATCH = 32
QUALITY = 90


def loader(device: str, quick: bool) -> Iterator[Case]:
    """Compare loaders on the CPU. They read drawn JPEGs, about as large as those of ImageNet, from a temporary folder."""
    count, workers = (16, (0,)) if quick else (512, (0, 1, 2))
    with TemporaryDirectory() as folder:
        root, archive = Path(folder) / 'images', Path(folder) / 'images.tar'
        files = write(root, count)
        yield from decoding([path.read_bytes() for path in files[:64]])
        for _ in pack(ImageFolder(root), archive):
            pass
        ours, packed = ImageFolder(root, views=[VIEW, VIEW]), Shards(archive, views=[VIEW, VIEW])
        yield reading(ours, packed)
        peers = list(others(ours, Path(folder), VIEW))
        for number in workers:
            name = f'loader with two views, {number} workers'
            mine = epoch(ours, number)
            yield Case(
                name,
                'torchvision on PIL, as released',
                mine,
                epoch(Released(root), number),
                images=count,
            )
            yield Case(
                name, 'ours from one packed file', mine, epoch(packed, number), same_batches, count
            )
            for peer, dataset in peers:
                yield Case(
                    name,
                    f'{peer}, its decoder and our views',
                    mine,
                    epoch(dataset, number),
                    images=count,
                )
            with suppress(ImportError):
                yield Case(
                    name,
                    'DALI on the CPU, as many threads',
                    mine,
                    dali(root, max(1, number)),
                    images=count,
                )


def many_files(device: str, quick: bool) -> Iterator[Case]:
    """Compare how long it takes to find and read images in folders and archives of up to a million small JPEGs."""
    for count in (64,) if quick else (10_000, 100_000, 1_000_000):
        with TemporaryDirectory() as folder:
            yield from growing(Path(folder), count)


def write(root: Path, count: int) -> list[Path]:
    """Write drawn photographs of about 85 kB in eight classes."""
    files = []
    for number in range(count):
        files.append(root / f'class{number % 8}' / f'{number}.jpg')
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photograph(number)).save(files[-1], quality=QUALITY)
    return files


def decoding(files: list[bytes]) -> Iterator[Case]:
    name = f'decode {len(files)} JPEGs of 500 x 375'
    ours = lambda: [decode_bytes(data) for data in files]  # noqa: E731
    yield Case(
        name,
        'Pillow alone',
        ours,
        lambda: [with_pillow(data) for data in files],
        same_pixels,
        len(files),
    )
    arrays = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in files]
    yield Case(
        name,
        'torchvision.io',
        ours,
        lambda: [decode_jpeg(data) for data in arrays],
        same_pixels,
        len(files),
    )
    yield Case(
        name, 'OpenCV', ours, lambda: [with_opencv(data) for data in files], images=len(files)
    )
    with suppress(ImportError):
        from simplejpeg import decode_jpeg as alone

        theirs = lambda: [torch.from_numpy(alone(data)).permute(2, 0, 1) for data in files]  # noqa: E731
        yield Case(
            name, 'simplejpeg, which mmairl uses, too', ours, theirs, same_pixels, len(files)
        )


def growing(folder: Path, count: int) -> Iterator[Case]:
    """Yield cases that find and read images among `count` images, in folders of 100 images and in 16 archives."""
    jpegs = []
    for number in range(64):
        Image.fromarray(photograph(number)).resize((64, 48)).save(
            buffer := io.BytesIO(), 'JPEG', quality=QUALITY
        )
        jpegs.append(buffer.getvalue())
    for shard, numbers in enumerate(np.array_split(np.arange(count), 16)):
        with tarfile.open(folder / f'{shard:02}.tar', 'w') as archive:
            for number in numbers.tolist():
                path = folder / f'files/{number // 100:05}/{number:07}.jpg'
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(jpegs[number % 64])
                add(archive, path.name, jpegs[number % 64])

    def searched() -> Shards:
        for archive in folder.glob('*.tar'):
            archive.touch()  # a new modification time makes mmairl index the archive again
        return Shards(folder)

    find_ours = lambda: ImageFolder(folder / 'files')  # noqa: E731
    find_theirs = lambda: datasets.ImageFolder(str(folder / 'files'))  # noqa: E731
    yield Case(
        f'find {count} images in folders',
        "torchvision's folder",
        find_ours,
        find_theirs,
        images=count,
    )
    yield Case(
        f'find {count} images in 16 archives, indexed again',
        "torchvision's folder",
        searched,
        find_theirs,
        images=count,
    )
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()[:1000]
    images, packed, theirs = find_ours(), Shards(folder), find_theirs()
    name, ours = (
        f'read and decode {len(order)} of {count} images',
        lambda: [images.raw(index) for index in order],
    )
    yield Case(
        name,
        "torchvision's folder",
        ours,
        lambda: [theirs[index] for index in order],
        images=len(order),
    )
    yield Case(
        name,
        'ours from 16 archives',
        ours,
        lambda: [packed.raw(index) for index in order],
        same_pixels,
        len(order),
    )


def with_pillow(data: bytes) -> Tensor:
    return torch.from_numpy(np.array(Image.open(io.BytesIO(data)).convert('RGB'))).permute(2, 0, 1)


def with_opencv(data: bytes) -> np.ndarray:
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)


def reading(files: ImageFolder, packed: Shards) -> Case:
    """Read images in random order from the system's cache. A disk would add a time that depends on the disk."""
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()

    def check(ours: list[bytes], theirs: list[bytes]) -> None:
        assert ours == theirs

    return Case(
        f'read {len(order)} files at random',
        'one packed file',
        lambda: [files.path(index).read_bytes() for index in order],
        lambda: [packed.encoded(index) for index in order],
        check,
        len(order),
        note=NOTE,
    )


class Released(Dataset):
    """The loader of MoCo v2's release: torchvision's folder and two crops by PIL."""

    def __init__(self, root: Path) -> None:
        self.files, self.view = datasets.ImageFolder(str(root)), torchvision_released()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> list[Tensor]:
        image = self.files[index][0]
        return [self.view(image), self.view(image)]


def others(files: ImageFolder, folder: Path, view: list[dict]) -> Iterator[tuple[str, Dataset]]:
    """Yield loaders of other installed packages. They read the same files in sequence, and then make mmairl's two views."""
    make = worker_views(view)

    def views(image: Image.Image) -> list[Tensor]:
        return make(tensor(np.array(image.convert('RGB'))))

    with suppress(ImportError):
        import webdataset

        for _ in pack(files, folder / 'wds.tar', size=files_size(files) // 8):
            pass
        shards = sorted(map(str, folder.glob('wds-*.tar')))
        yield (
            'webdataset',
            webdataset.WebDataset(shards, shardshuffle=False)
            .decode('pil')
            .map(lambda one: views(one['jpg'])),
        )
    with suppress(ImportError):
        import datasets

        rows = [dict(bytes=files.encoded(index), path=None) for index in range(len(files))]
        table = datasets.Dataset.from_dict(
            dict(image=rows), features=datasets.Features(image=datasets.Image())
        )
        table.save_to_disk(folder / 'arrow')
        read = datasets.load_from_disk(folder / 'arrow')
        yield (
            'datasets',
            read.with_transform(
                lambda some: dict(inputs=[views(image) for image in some['image']])
            ),
        )


def dali(root: Path, threads: int) -> Callable[[], object]:
    """Return a function that loads the same files by DALI, with DALI's decoder and DALI's version of the same two views."""
    from nvidia.dali import fn, pipeline_def, types

    def chance(share: float) -> object:
        return fn.random.coin_flip(probability=share, dtype=types.BOOL)

    def between(low: float, high: float) -> object:
        return fn.random.uniform(range=(low, high))

    def view(image: object) -> object:
        image = fn.random_resized_crop(image, size=224, random_area=(0.2, 1.0))
        if chance(0.8):
            image = fn.color_twist(
                image,
                brightness=between(0.6, 1.4),
                contrast=between(0.6, 1.4),
                saturation=between(0.6, 1.4),
                hue=between(-36, 36),
            )
        if chance(0.2):
            image = fn.saturation(image, saturation=0.0)
        if chance(0.5):
            image = fn.gaussian_blur(image, sigma=between(0.1, 2.0))
        return fn.flip(image, horizontal=fn.random.coin_flip(probability=0.5))

    # Prefetching is off, because it would run while mmairl's loader is timed.
    @pipeline_def(
        batch_size=BATCH,
        num_threads=threads,
        device_id=None,
        exec_async=False,
        exec_pipelined=False,
        prefetch_queue_depth=1,
        enable_conditionals=True,
    )
    def pipeline() -> tuple:
        data, label = fn.readers.file(file_root=str(root), name='files')
        image = fn.decoders.image(data, output_type=types.RGB)
        return view(image), view(image), label

    made = pipeline()
    made.build()

    def run() -> None:
        for _ in range(made.epoch_size('files') // BATCH):
            made.run()

    return run


def files_size(files: ImageFolder) -> int:
    return sum(files.path(index).stat().st_size for index in range(len(files)))


def epoch(dataset: Dataset, workers: int) -> Callable[[], object]:
    """Return a function that loads all batches and returns the last one. Data workers persist between calls."""
    batches = DataLoader(
        dataset,
        BATCH,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=default_collate,
    )

    def run() -> object:
        last = None
        for last in batches:  # noqa: B007
            pass
        return last

    return seeded(run)


def same_pixels(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


def same_batches(ours: dict, theirs: dict) -> None:
    """Check that the last batches have equal labels and equal shapes of views.

    The pixels of the views are not compared, because persistent workers draw different views in each call.
    """
    assert torch.equal(ours['data_samples']['label'], theirs['data_samples']['label'])
    assert [view.shape for view in ours['inputs']] == [view.shape for view in theirs['inputs']]
