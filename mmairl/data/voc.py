"""Pascal VOC 2007 as a classification task, where an image can be of several classes."""

from pathlib import Path
from xml.etree import ElementTree

from torchvision import datasets

from mmairl.data.official_lists import ListedDataset, Listing, below
from mmairl.registry import DATASETS

# fmt: off
CLASSES = [
    'aeroplane', 'bicycle', 'bird', 'boat', 'bottle', 'bus', 'car', 'cat', 'chair', 'cow',
    'diningtable', 'dog', 'horse', 'motorbike', 'person', 'pottedplant', 'sheep', 'sofa', 'train', 'tvmonitor',
]
# fmt: on


@DATASETS.register_module()
class VOC2007(ListedDataset):
    """20 kinds of objects in the official splits of 2 501, 2 510 and 4 952 images; labels of shape (images, 20).

    1: the image shows an object of the class; 0: none; -1: only ones that are marked as difficult, which the official
    score leaves out.
    """

    metric = '11-point mAP'
    layout = 'VOCdevkit/VOC2007/ with ImageSets/Main/{train,val,test}.txt, Annotations/NAME.xml and JPEGImages/NAME.jpg'
    source = 'the PASCAL VOC 2007 page (the archives VOCtrainval_06-Nov-2007 and VOCtest_06-Nov-2007)'

    def listing(self, root: Path, part: str) -> Listing:
        found = datasets.VOCDetection(root, year='2007', image_set=part)
        return Listing(below(root, found.images), [presence(path) for path in found.annotations], CLASSES)


def presence(annotation: str | Path) -> list[int]:
    """1, 0 or -1 for each class from the objects of one image's annotation."""
    row = [0] * len(CLASSES)
    for thing in ElementTree.parse(annotation).iter('object'):
        label = CLASSES.index(thing.findtext('name'))
        if thing.findtext('difficult') != '1':
            row[label] = 1
        elif row[label] == 0:
            row[label] = -1
    return row
