"""SUN397: scenes in nested class folders, with the authors' first partition as the split."""

from pathlib import Path

from mmairl.data.official_lists import HeldOutDataset, Listing
from mmairl.data.splits import HeldOut
from mmairl.registry import DATASETS

LISTS = {'train': 'Training_01.txt', 'test': 'Testing_01.txt'}


@DATASETS.register_module()
class SUN397(HeldOutDataset):
    """397 scenes: 15 880 training, 3 970 validation and 19 850 test images; most of the archive is in no split."""

    layout = 'SUN397/ with ClassName.txt and its images, and splits/{Training_01,Testing_01}.txt'
    source = 'the SUN Database page of Princeton (the archives SUN397 and, for splits/, Partitions)'
    held_out = HeldOut(3_970, of=19_850)

    def listing(self, root: Path, part: str) -> Listing:
        # A line is /a/apartment_building/outdoor/sun_NAME.jpg, and its class is all but the first and the last part.
        names = (root / 'SUN397' / 'ClassName.txt').read_text().split()
        images = (root / 'splits' / LISTS[part]).read_text().split()
        label = {name: number for number, name in enumerate(names)}
        labels = [label[image.rpartition('/')[0]] for image in images]
        return Listing([f'SUN397{image}' for image in images], labels, [name[len('/a/') :] for name in names])
