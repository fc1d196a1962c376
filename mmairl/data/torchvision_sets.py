"""Image sets of BYOL's transfer table (Tab. 3) whose lists torchvision reads; the images are read as all our files are."""

from collections.abc import Sequence
from pathlib import Path

from torchvision import datasets

from mmairl.data.official_lists import HeldOutDataset, ListedDataset, Listing, below
from mmairl.data.splits import HeldOut
from mmairl.registry import DATASETS


@DATASETS.register_module()
class Food101(HeldOutDataset):
    """101 dishes: 68 175 training, 7 575 validation and 25 250 test images.

    >>> Food101('data/food101', split='val', views=[[dict(type='Resize', size=224), dict(type='CenterCrop', size=224)]])
    """

    layout = 'food-101/meta/{train,test}.json and food-101/images/CLASS/NAME.jpg'
    source = "the Food-101 page of ETH Zurich's Computer Vision Lab"
    held_out = HeldOut(7_575, of=75_750)

    def listing(self, root: Path, part: str) -> Listing:
        found = datasets.Food101(root, part)
        return Listing(below(root, found._image_files), found._labels, found.classes)


@DATASETS.register_module()
class StanfordCars(HeldOutDataset):
    """196 models of cars: 6 494 training, 1 650 validation and 8 041 test images."""

    layout = (
        'stanford_cars/devkit/{cars_meta,cars_train_annos}.mat, stanford_cars/cars_test_annos_withlabels.mat '
        'and stanford_cars/{cars_train,cars_test}/NAME.jpg'
    )
    source = 'the Stanford Cars page of the Stanford AI Lab, now offline, or a mirror of its archives'
    held_out = HeldOut(1_650, of=8_144)

    def listing(self, root: Path, part: str) -> Listing:
        found = datasets.StanfordCars(root, part)
        files, labels = zip(*found._samples)
        return Listing(below(root, files), [int(label) for label in labels], found.classes)


@DATASETS.register_module()
class FGVCAircraft(ListedDataset):
    """100 variants of aircraft in the authors' own splits of 3 334, 3 333 and 3 333 images."""

    metric = 'mean per class'
    layout = 'fgvc-aircraft-2013b/data/ with variants.txt, images_variant_{train,val,test}.txt and images/NAME.jpg'
    source = "the FGVC-Aircraft page of Oxford's Visual Geometry Group"

    def listing(self, root: Path, part: str) -> Listing:
        found = datasets.FGVCAircraft(root, part, annotation_level='variant')
        return Listing(below(root, found._image_files), found._labels, found.classes)


@DATASETS.register_module()
class DTD(ListedDataset):
    """47 textures, 1 880 images in each split; the authors have ten `partition`s, and the first is the usual one."""

    layout = 'dtd/dtd/labels/{train,val,test}N.txt and dtd/dtd/images/CLASS/NAME.jpg'
    source = "the Describable Textures page of Oxford's Visual Geometry Group"

    def __init__(
        self,
        root: str | Path,
        split: str = 'train',
        views: Sequence[Sequence[dict]] | None = None,
        max_unreadable: float = 0.01,
        partition: int = 1,
    ) -> None:
        self.partition = partition
        super().__init__(root, split, views, max_unreadable)

    def listing(self, root: Path, part: str) -> Listing:
        found = datasets.DTD(root, part, partition=self.partition)
        return Listing(below(root, found._image_files), found._labels, found.classes)


@DATASETS.register_module()
class OxfordIIITPet(HeldOutDataset):
    """37 breeds of cats and dogs: 2 940 training, 740 validation and 3 669 test images."""

    metric = 'mean per class'
    layout = 'oxford-iiit-pet/annotations/{trainval,test}.txt and oxford-iiit-pet/images/NAME.jpg'
    source = "the Oxford-IIIT Pet page of Oxford's Visual Geometry Group"
    held_out = HeldOut(740, of=3_680)

    def listing(self, root: Path, part: str) -> Listing:
        found = datasets.OxfordIIITPet(root, 'test' if part == 'test' else 'trainval')
        return Listing(below(root, found._images), found._labels, found.classes)


@DATASETS.register_module()
class Flowers102(ListedDataset):
    """102 flowers in the authors' own splits of 1 020, 1 020 and 6 149 images."""

    metric = 'mean per class'
    layout = 'flowers-102/{setid,imagelabels}.mat, unchanged by their md5, and flowers-102/jpg/image_NUMBER.jpg'
    source = "the 102 Category Flower page of Oxford's Visual Geometry Group"

    def listing(self, root: Path, part: str) -> Listing:
        found = datasets.Flowers102(root, part)
        return Listing(below(root, found._image_files), found._labels, found.classes)
