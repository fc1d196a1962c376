"""Places205 and iNaturalist 2018: sets with a list for training and one for validation, whose test labels are not out."""

import json
from pathlib import Path

from mmairl.data.official_lists import ListedDataset, Listing
from mmairl.registry import DATASETS


@DATASETS.register_module()
class Places205(ListedDataset):
    """205 scenes, 2 448 873 training and 20 500 validation images, in the two archives' own folders."""

    splits = ('train', 'val')
    folder = 'data/vision/torralba/deeplearning/images256'
    layout = f'trainvalsplit_places205/{{train,val}}_places205.csv and {folder}/a/abbey/NAME.jpg'
    source = "the Places205 page of MIT's CSAIL (the archives imagesPlaces205_resize and trainvalsplit_places205)"

    def listing(self, root: Path, part: str) -> Listing:
        lines = (root / 'trainvalsplit_places205' / f'{part}_places205.csv').read_text().splitlines()
        images, numbers = zip(*(line.rsplit(' ', 1) for line in lines if line.strip()))
        labels = [int(number) for number in numbers]
        # The list names classes only by their folders; a/abbey is abbey.
        names = {label: image.rpartition('/')[0].partition('/')[2] for image, label in zip(images, labels)}
        classes = [names.get(label, str(label)) for label in range(max(labels) + 1)]
        return Listing([f'{self.folder}/{image}' for image in images], labels, classes)


@DATASETS.register_module()
class INaturalist2018(ListedDataset):
    """8 142 species, long-tailed: 437 513 training and 24 426 validation images."""

    splits = ('train', 'val')
    layout = 'train2018.json, val2018.json and train_val2018/'
    source = 'the iNaturalist 2018 competition page (FGVC5)'

    def listing(self, root: Path, part: str) -> Listing:
        record = json.loads((root / f'{part}2018.json').read_text())
        categories = sorted(record['categories'], key=lambda category: category['id'])
        label = {category['id']: number for number, category in enumerate(categories)}
        species = {item['image_id']: label[item['category_id']] for item in record['annotations']}
        files = [image['file_name'] for image in record['images']]
        labels = [species[image['id']] for image in record['images']]
        return Listing(files, labels, [category['name'] for category in categories])
