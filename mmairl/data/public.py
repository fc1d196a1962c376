"""Public labeled data sets. The class of a data set defines its splits, its file layout and how its lists of images are read.

To add a data set, write a class in this file, list the class in mmairl/registry.py, and write a config in configs/evaluation.
"""

import csv
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import datasets

from mmairl.config import walk
from mmairl.data.datasets import FileDataset, Listing, ViewDataset, Views, class_folders
from mmairl.data.decode import extensions
from mmairl.errors import UserError, explained
from mmairl.io import LARGEST_LIST, UnreadableFile, explained_disk_errors, read_text
from mmairl.registry import DATASETS

SPLITS = ('train', 'val', 'train+val', 'test')


def rows_of_split(split: str, count: int, held_out: tuple[int, int], seed: int) -> Tensor:
    """Return the sorted indices of the images of a split, for a data set whose authors list no validation images.

    If `split` is 'test', `count` is the number of test images, and all are returned. Otherwise, `count` is the number of
    training images. 'train+val' has all of them, 'val' has a random sample, and 'train' has the rest. If `held_out` is
    (n_val, n_total), the sample is the fraction n_val / n_total of the training images.
    """
    if split == 'test':
        return torch.arange(count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    number = round(count * held_out[0] / held_out[1])
    return {'train': order[number:], 'val': order[:number], 'train+val': order}[split].sort().values


class Published:
    """Base class of public data sets.

    Attributes:
        splits: Names of the splits.
        layout: A description of the expected files below the root, for messages.
        downloads: Functions of torchvision that download the files into a folder, in this layout.
    """

    splits: tuple[str, ...] = SPLITS
    layout: str
    downloads: Sequence[Callable[..., Any]] = ()

    @classmethod
    def download(cls, root: str | Path, split: str = 'train') -> None:
        """Download the data set with torchvision, which verifies checksums. Do nothing if the data set is already readable.

        The files appear below `root` when the download is complete. Existing files are never replaced.

        Raises:
            UserError: If torchvision cannot download the data set, if the download fails, if the disk is full, or if a
                downloaded file or folder already exists below `root`.
        """
        if cls.is_readable(root, split):
            return
        name = cls.__name__
        if not cls.downloads:
            raise UserError(
                f'{name}: torchvision cannot download this data set; download it yourself, and put its files below {root} '
                f'(expected layout: {cls.layout})',
                code='no-download',
            )
        folder = Path(root) / '.download'
        failed = f'{name}: the download failed'
        remedy = 'check the connection and run the command again'
        with explained(failed, remedy, code='download-failed'), explained_disk_errors(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f'{folder}.lock'):
                if cls.is_readable(root, split):
                    # Another process has downloaded the data set in the meantime.
                    return
                # If the folder exists, it is left over from a killed download.
                shutil.rmtree(folder, ignore_errors=True)
                try:
                    for fetch in cls.downloads:
                        fetch(folder, download=True)
                    publish_files(folder, Path(root))
                finally:
                    shutil.rmtree(folder, ignore_errors=True)

    @classmethod
    def is_readable(cls, root: str | Path, split: str) -> bool:
        try:
            cls(root, split)
        except UserError as error:
            if error.code != 'unreadable-set':
                raise
            return False
        return True

    @contextmanager
    def reading(self, root: str | Path, split: str) -> Iterator[None]:
        """Run a `with` block that reads the data set. Raise if the split is unknown, or if files are missing or damaged."""
        name = type(self).__name__
        if split not in self.splits:
            known = ', '.join(self.splits)
            raise UserError(
                f"{name}.split: unknown value ('{split}'); set one of {known}", code='unknown-split'
            )
        try:
            yield
        except (ImportError, MemoryError):
            raise
        except Exception as error:  # the parsers of damaged files raise errors of many types
            if isinstance(error, UserError) and not isinstance(error, UnreadableFile):
                raise
            # The text of a RuntimeError of torchvision is dropped, because it only explains how to download the data set.
            cause = '' if isinstance(error, RuntimeError) else f' ({type(error).__name__}: {error})'
            fetch = (
                ', run `mmairl evaluate ... --download` to download them' if self.downloads else ''
            )
            raise UserError(
                f'{name}: cannot be read from {Path(root).resolve()}{cause}; expected layout: {self.layout}. Put the files '
                f'there{fetch}, or set root of the data set to their folder',
                code='unreadable-set',
            ) from error


def publish_files(folder: Path, root: Path) -> None:
    """Move the downloaded files below the root, and delete the archives from which they were unpacked."""
    for path in list(folder.rglob('*')):
        if path.suffix in ('.tar', '.tgz', '.gz', '.zip'):
            path.unlink()
    for path in folder.iterdir():
        if (root / path.name).exists():
            raise UserError(
                f'{root / path.name}: already exists, but is not a complete data set; remove it, or set another root',
                code='download-exists',
            )
        path.rename(root / path.name)


def download_missing(config: Any) -> None:
    """Download each public data set that occurs in a config, or in a part of a config, unless it is already readable."""
    for _, part in walk(config):
        if isinstance(part, dict):
            kind = DATASETS.module_dict.get(str(part.get('type')).removeprefix('mmairl.'))
            if isinstance(kind, type) and issubclass(kind, Published):
                kind.download(part['root'], part.get('split', 'train'))


class ListedDataset(Published, FileDataset):
    """Base class of public data sets of image files. Most authors publish a list of the files of each part.

    The parts are 'train', 'val' and 'test'. A subclass sets `lists` to a function that returns a part as a data set of
    torchvision, or it defines `listing`. If the authors list no validation images, these are sampled from the training
    images, and `held_out` sets their fraction. Published results also use a random sample. Only its size is known (BYOL's
    appendix), and our sample has the same size.

    Args:
        root: The folder that contains the files.
        split: One of `splits`.
        views: One list of transforms for each view, or the name of a predefined list of views (see view_sets.yaml).
        max_unreadable: Training stops if more than this fraction of the images, and more than 10 images, are unreadable.
            With 0, it stops at the first unreadable image.
        seed: Seed for sampling the validation images.

    Raises:
        UserError: If the split is unknown, or if files are missing or damaged.
    """

    lists: Callable[[Path, str], Dataset]
    held_out: tuple[int, int] | None = None

    def __init__(
        self,
        root: str | Path,
        split: str = 'train',
        views: Views | None = None,
        max_unreadable: float = 0.01,
        seed: int = 0,
    ) -> None:
        self.seed = seed
        with self.reading(root, split):
            files, labels, self.classes = self.select(Path(root), split)
        if not files:
            raise UserError(
                f"{type(self).__name__}: {Path(root).resolve()} has no image of this split ('{split}'); check that the data "
                'set is complete',
                code='empty-split',
            )
        super().__init__(root, files, labels, views, max_unreadable)

    def listing(self, root: Path, part: str) -> Listing:
        """Return the image files, labels and classes of one part ('train', 'val' or 'test')."""
        listed = self.lists(root, part)
        # The lists are private attributes of torchvision. They are used because the public way to get a label also decodes
        # the image.
        if hasattr(listed, '_samples'):
            files, labels = zip(*listed._samples)
        else:
            files = getattr(listed, '_image_files', None) or listed._images
            labels = listed._labels
        return relative_paths(root, files), list(map(int, labels)), listed.classes

    def select(self, root: Path, split: str) -> Listing:
        if self.held_out is None:
            files, labels, classes = zip(*(self.listing(root, part) for part in split.split('+')))
            return [*chain(*files)], [*chain(*labels)], classes[0]
        files, labels, classes = self.listing(root, 'test' if split == 'test' else 'train')
        rows = rows_of_split(split, len(files), self.held_out, self.seed).tolist()
        return [files[row] for row in rows], [labels[row] for row in rows], classes


def relative_paths(root: Path, files: Iterable[str | Path]) -> list[str]:
    return [os.path.relpath(file, root) for file in files]


@DATASETS.register_module()
class Food101(ListedDataset):
    """Photographs of 101 dishes: 68 175 training, 7 575 validation and 25 250 test images."""

    layout = 'food-101/meta/{train,test}.json and food-101/images/CLASS/NAME.jpg'
    held_out = 7_575, 75_750
    lists = datasets.Food101
    downloads = (lists,)


@DATASETS.register_module()
class StanfordCars(ListedDataset):
    """Photographs of 196 models of cars: 6 494 training, 1 650 validation and 8 041 test images."""

    layout = (
        'stanford_cars/devkit/{cars_meta,cars_train_annos}.mat, stanford_cars/cars_test_annos_withlabels.mat '
        'and stanford_cars/{cars_train,cars_test}/NAME.jpg'
    )
    held_out = 1_650, 8_144
    lists = datasets.StanfordCars


@DATASETS.register_module()
class FGVCAircraft(ListedDataset):
    """Photographs of 100 variants of aircraft: 3 334 training, 3 333 validation and 3 333 test images (the authors' splits)."""

    metric = 'mean per class'
    layout = 'fgvc-aircraft-2013b/data/ with variants.txt, images_variant_{train,val,test}.txt and images/NAME.jpg'
    lists = datasets.FGVCAircraft
    downloads = (lists,)


@DATASETS.register_module()
class DTD(ListedDataset):
    """Photographs of 47 kinds of textures: 1 880 training, 1 880 validation and 1 880 test images.

    The authors published ten partitions. As is customary, this data set uses the first one.
    """

    layout = 'dtd/dtd/labels/{train,val,test}N.txt and dtd/dtd/images/CLASS/NAME.jpg'
    lists = datasets.DTD
    downloads = (lists,)


@DATASETS.register_module()
class OxfordIIITPet(ListedDataset):
    """Photographs of 37 breeds of cats and dogs: 2 940 training, 740 validation and 3 669 test images."""

    metric = 'mean per class'
    layout = 'oxford-iiit-pet/annotations/{trainval,test}.txt and oxford-iiit-pet/images/NAME.jpg'
    held_out = 740, 3_680
    downloads = (datasets.OxfordIIITPet,)

    def lists(self, root: Path, part: str) -> Dataset:
        return datasets.OxfordIIITPet(root, 'test' if part == 'test' else 'trainval')


@DATASETS.register_module()
class Flowers102(ListedDataset):
    """Photographs of 102 kinds of flowers: 1 020 training, 1 020 validation and 6 149 test images (the authors' splits)."""

    metric = 'mean per class'
    layout = (
        'flowers-102/{setid,imagelabels}.mat with the published MD5 digests, and '
        'flowers-102/jpg/image_NUMBER.jpg'
    )
    lists = datasets.Flowers102
    downloads = (lists,)


@DATASETS.register_module()
class SUN397(ListedDataset):
    """Photographs of 397 kinds of scenes: 15 880 training, 3 970 validation and 19 850 test images.

    These are the images of the authors' first partition. Most images in the archive belong to no split.
    """

    layout = 'SUN397/ with ClassName.txt and its images, and splits/{Training_01,Testing_01}.txt from Partitions.zip'
    partition = {'train': 'Training_01.txt', 'test': 'Testing_01.txt'}
    held_out = 3_970, 19_850

    def listing(self, root: Path, part: str) -> Listing:
        # The class is part of the path: /a/apartment_building/outdoor/sun_NAME.jpg has the class apartment_building/outdoor.
        names = read_text(root / 'SUN397' / 'ClassName.txt').split()
        images = read_text(root / 'splits' / self.partition[part]).split()
        label = {name: number for number, name in enumerate(names)}
        labels = [label[image.rpartition('/')[0]] for image in images]
        classes = [name[len('/a/') :] for name in names]
        return [f'SUN397{image}' for image in images], labels, classes


@DATASETS.register_module()
class Birdsnap(ListedDataset):
    """Photographs of 500 species of birds of North America: 42 405 training, 4 981 validation and 2 443 test images.

    Some photographs no longer exist on Flickr, and the splits leave them out. If training images are missing, the number of
    validation images is reduced in proportion.
    """

    images = 'download/images'  # the authors' script creates this folder
    layout = f'species.txt, images.txt, test_images.txt and {images}/SPECIES/NAME.jpg, as created by get_birdsnap.py'
    held_out = 4_981, 47_386

    def listing(self, root: Path, part: str) -> Listing:
        species = tab_separated(root / 'species.txt')
        label = {row['id']: number for number, row in enumerate(species)}
        test = {row['path'] for row in tab_separated(root / 'test_images.txt')}
        files, labels = [], []
        for row in tab_separated(root / 'images.txt'):
            file = f'{self.images}/{row["path"]}'
            if (row['path'] in test) == (part == 'test') and (root / file).is_file():
                files.append(file)
                labels.append(label[row['species_id']])
        return files, labels, [row['common'] for row in species]


def tab_separated(path: Path) -> list[dict[str, str]]:
    """Read a tab-separated table with a header line. Return one dictionary per row."""
    lines = StringIO(read_text(path))
    return list(csv.DictReader(lines, delimiter='\t', quoting=csv.QUOTE_NONE))


@DATASETS.register_module()
class Caltech101(ListedDataset):
    """Photographs of 102 classes: 2 550 training, 510 validation and 6 084 test images.

    The 25 training and 5 validation images of each class are sampled at random, and the other images are the test images.
    As in published results, BACKGROUND_Google counts as a class (torchvision omits it). The published results also use
    random samples, which are not public.
    """

    metric = 'mean per class'
    folder = 'caltech101/101_ObjectCategories'
    layout = f'{folder}/CLASS/NAME.jpg, with BACKGROUND_Google as one of the classes'
    downloads = (datasets.Caltech101,)
    # The range of each split in the shuffled images of a class.
    rows = {
        'train': slice(25),
        'val': slice(25, 30),
        'train+val': slice(30),
        'test': slice(30, None),
    }

    def select(self, root: Path, split: str) -> Listing:
        images, numbers, classes = class_folders(root / self.folder, extensions())
        labels = torch.tensor(numbers)
        generator = torch.Generator().manual_seed(self.seed)
        rows = []
        for label in range(len(classes)):
            members = (labels == label).nonzero().flatten()
            order = torch.randperm(len(members), generator=generator)
            rows.append(members[order[self.rows[split]].sort().values])
        selected = torch.cat(rows)
        files = [f'{self.folder}/{images[row]}' for row in selected]
        return files, labels[selected].tolist(), classes


@DATASETS.register_module()
class Places205(ListedDataset):
    """Photographs of 205 kinds of scenes: 2 448 873 training and 20 500 validation images.

    The expected layout is the one that unpacking the authors' two archives creates.
    """

    splits = ('train', 'val')
    folder = 'data/vision/torralba/deeplearning/images256'
    layout = f'trainvalsplit_places205/{{train,val}}_places205.csv and {folder}/a/abbey/NAME.jpg'

    def listing(self, root: Path, part: str) -> Listing:
        path = root / 'trainvalsplit_places205' / f'{part}_places205.csv'
        lines = list(filter(str.strip, read_text(path, LARGEST_LIST).splitlines()))
        images = [line.rpartition(' ')[0] for line in lines]
        labels = [int(line.rpartition(' ')[2]) for line in lines]
        # The lists contain class names only as parts of folders: the class abbey is in the folder a/abbey.
        folders = dict(zip(labels, (image.rpartition('/')[0] for image in images)))
        names = {label: folder.partition('/')[2] for label, folder in folders.items()}
        classes = [names.get(label, str(label)) for label in range(max(labels) + 1)]
        return [f'{self.folder}/{image}' for image in images], labels, classes


@DATASETS.register_module()
class INaturalist2018(ListedDataset):
    """Photographs of 8 142 species in a long-tailed distribution: 437 513 training and 24 426 validation images."""

    splits = ('train', 'val')
    layout = 'train2018.json, val2018.json and train_val2018/'

    def listing(self, root: Path, part: str) -> Listing:
        record = json.loads(read_text(root / f'{part}2018.json', LARGEST_LIST))
        categories = sorted(record['categories'], key=lambda category: category['id'])
        label = {category['id']: number for number, category in enumerate(categories)}
        species = {item['image_id']: label[item['category_id']] for item in record['annotations']}
        files = [image['file_name'] for image in record['images']]
        labels = [species[image['id']] for image in record['images']]
        return files, labels, [category['name'] for category in categories]


# fmt: off
VOC_CLASSES = [
    'aeroplane', 'bicycle', 'bird', 'boat', 'bottle', 'bus', 'car', 'cat', 'chair', 'cow',
    'diningtable', 'dog', 'horse', 'motorbike', 'person', 'pottedplant', 'sheep', 'sofa', 'train', 'tvmonitor',
]
# fmt: on


@DATASETS.register_module()
class VOC2007(ListedDataset):
    """Photographs with 20 kinds of objects, in the official splits: 2 501 training, 2 510 validation and 4 952 test images.

    The labels have the shape (images, 20). Label 1 means that the image shows an object of the class, and 0 that it does
    not. Label -1 means that all objects of the class in the image are marked as difficult. The official score ignores these
    labels.
    """

    metric = '11-point mAP'
    layout = 'VOCdevkit/VOC2007/ with ImageSets/Main/{train,val,test}.txt, Annotations/NAME.xml and JPEGImages/NAME.jpg'
    downloads = tuple(
        partial(datasets.VOCDetection, year='2007', image_set=part) for part in ('trainval', 'test')
    )

    def listing(self, root: Path, part: str) -> Listing:
        listed = datasets.VOCDetection(root, year='2007', image_set=part)
        labels = list(map(labels_in_annotation, listed.annotations))
        return relative_paths(root, listed.images), labels, VOC_CLASSES


def labels_in_annotation(annotation: str | Path) -> list[int]:
    """Read the annotation file of an image. Return the label of each class: 1, 0 or -1, as in `VOC2007`."""
    row = [0] * len(VOC_CLASSES)
    for thing in ElementTree.parse(annotation).iter('object'):
        label = VOC_CLASSES.index(thing.findtext('name'))
        if thing.findtext('difficult') != '1':
            row[label] = 1
        elif row[label] == 0:
            row[label] = -1
    return row


@DATASETS.register_module()
class CIFAR10(Published, ViewDataset):
    """Photographs of 10 classes at 32 x 32 pixels: 45 000 training, 5 000 validation and 10 000 test images.

    The validation images are sampled at random from the authors' training images, because the validation split of published
    results is not public. The files are pickles, and loading a pickle can run code. torchvision loads them only if their MD5
    digests equal the published digests.

    Args:
        root: The folder that contains the files.
        split: One of `splits`.
        views: One list of transforms for each view, or the name of a predefined list of views (see view_sets.yaml).
        seed: Seed for sampling the validation images.
    """

    published: type[datasets.CIFAR10] = datasets.CIFAR10
    held_out = 5_000, 50_000
    layout = (
        'cifar-10-batches-py/ with the batches of the Python version and the published MD5 digests'
    )
    downloads = (datasets.CIFAR10,)

    def __init__(
        self, root: str | Path, split: str = 'train', views: Views | None = None, seed: int = 0
    ) -> None:
        super().__init__(views)
        with self.reading(root, split):
            batches = self.published(root, train=split != 'test', download=False)
        rows = rows_of_split(split, len(batches.targets), self.held_out, seed)
        self.classes = list(batches.classes)
        self.labels = torch.tensor(batches.targets, dtype=torch.int64)[rows]
        self.images = torch.from_numpy(batches.data)[rows].permute(0, 3, 1, 2).contiguous()

    def raw(self, index: int) -> Tensor:
        return self.images[index].clone()


@DATASETS.register_module()
class CIFAR100(CIFAR10):
    """Photographs of 100 classes at 32 x 32 pixels: 44 933 training, 5 067 validation and 10 000 test images.

    The arguments and the sampling of the validation images are the same as for `CIFAR10`.
    """

    published = datasets.CIFAR100
    held_out = 5_067, 50_000
    layout = 'cifar-100-python/ with train, test and meta of the Python version and the published MD5 digests'
    downloads = (datasets.CIFAR100,)


@DATASETS.register_module()
class STL10(Published, ViewDataset):
    """Photographs of 10 classes at 96 x 96 pixels: 5 000 training, 8 000 test and 100 000 unlabeled images.

    The images are mapped into memory that all processes share. torchvision would load 2.8 GB into each process.

    Args:
        root: The folder that contains the files.
        split: One of `splits`.
        views: One list of transforms for each view, or the name of a predefined list of views (see view_sets.yaml).
    """

    size = 96
    splits = ('train', 'test', 'unlabeled')
    layout = (
        'stl10_binary/ with class_names.txt, {train,test,unlabeled}_X.bin and {train,test}_y.bin'
    )
    downloads = (datasets.STL10,)

    def __init__(self, root: str | Path, split: str = 'train', views: Views | None = None) -> None:
        super().__init__(views)
        folder = Path(root) / 'stl10_binary'
        shape = -1, 3, self.size, self.size
        with self.reading(root, split):
            self.classes = read_text(folder / 'class_names.txt').split()
            self.images = np.memmap(folder / f'{split}_X.bin', np.uint8, 'r').reshape(shape)
            self.labels = torch.full((len(self.images),), -1)
            if split != 'unlabeled':
                # An assignment in place raises an error if the two files differ in length.
                from_one = np.fromfile(folder / f'{split}_y.bin', np.uint8)
                self.labels[:] = torch.from_numpy(from_one.astype(np.int64) - 1)

    def raw(self, index: int) -> Tensor:
        # The files store images column by column.
        return torch.from_numpy(self.images[index].transpose(0, 2, 1).copy())


@DATASETS.register_module()
class Landmarks(Published, FileDataset):
    """The landmark photographs of Oxford 5k or Paris 6k, in their public layouts. The protocol `retrieval` evaluates on them.

    The split 'query' has the query images, and the split 'test' has all images. The labels have the shape (images, queries).
    For a query, the label is 1 for images that the authors list as good or ok, -1 for junk and 0 for other images. As in
    DINO's evaluation, queries are whole images, and the boxes that the authors drew in them are ignored.

    Args:
        root: The folder with the images in `images/` and the text files of the queries in `groundtruth/`.
        split: 'query' or 'test'.
        views: One list of transforms for each view, or the name of a predefined list of views (see view_sets.yaml).
        max_unreadable: Training stops if more than this fraction of the images, and more than 10 images, are unreadable.
            With 0, it stops at the first unreadable image.
    """

    splits = ('query', 'test')
    layout = 'images/**/NAME.jpg and groundtruth/QUERY_{query,good,ok,junk}.txt'
    label_kind = 'queries'

    def __init__(
        self, root: str | Path, split: str, views: Views | None = None, max_unreadable: float = 0.01
    ) -> None:
        root = Path(root)
        with self.reading(root, split):
            lists = sorted((root / 'groundtruth').glob('*_query.txt'))
            if not lists:
                raise FileNotFoundError('the folder groundtruth has no query files')
            self.classes = [path.name.removesuffix('_query.txt') for path in lists]
            files = {path.stem: path for path in sorted((root / 'images').rglob('*.jpg'))}
            if split == 'query':
                files = {name: files[name] for (name,) in map(listed_images, lists)}
            labels = torch.zeros(len(files), len(lists), dtype=torch.int64)
            rows = {name: row for row, name in enumerate(files)}
            for column, path in enumerate(lists):
                for kind, value in (('good', 1), ('ok', 1), ('junk', -1)):
                    for name in listed_images(path.with_name(f'{self.classes[column]}_{kind}.txt')):
                        if name in rows:
                            labels[rows[name], column] = value
        super().__init__(
            root, relative_paths(root, files.values()), labels.tolist(), views, max_unreadable
        )


def listed_images(path: Path) -> list[str]:
    """Return the image names in a list file: the first word of each line, without Oxford 5k's prefix 'oxc1_'."""
    lines = read_text(path, LARGEST_LIST).splitlines()
    return [line.split()[0].removeprefix('oxc1_') for line in lines if line.strip()]
