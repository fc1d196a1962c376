"""Birdsnap: photographs that its users fetch from Flickr one by one, so that some are always missing."""

import csv
from pathlib import Path

from mmairl.data.official_lists import HeldOutDataset, Listing
from mmairl.data.splits import HeldOut
from mmairl.registry import DATASETS

IMAGES = 'download/images'  # where the authors' get_birdsnap.py puts them


@DATASETS.register_module()
class Birdsnap(HeldOutDataset):
    """500 birds of North America: 42 405 training, 4 981 validation and 2 443 test images where all are on the disk.

    Photographs that are gone from Flickr are left out of every split, and the validation part shrinks in proportion.
    """

    layout = f'species.txt, images.txt, test_images.txt and {IMAGES}/SPECIES/NAME.jpg'
    source = 'the Birdsnap page of Thomas Berg (Columbia), whose get_birdsnap.py fetches the photographs'
    held_out = HeldOut(4_981, of=47_386)

    def listing(self, root: Path, part: str) -> Listing:
        species = rows(root / 'species.txt')
        label = {row['id']: number for number, row in enumerate(species)}
        test = {row['path'] for row in rows(root / 'test_images.txt')}
        there = [
            (f'{IMAGES}/{row["path"]}', label[row['species_id']])
            for row in rows(root / 'images.txt')
            if (row['path'] in test) == (part == 'test') and (root / IMAGES / row['path']).is_file()
        ]
        return Listing([file for file, _ in there], [y for _, y in there], [row['common'] for row in species])


def rows(path: Path) -> list[dict[str, str]]:
    """A table of tab-separated fields under a line of their names."""
    with path.open(newline='', encoding='utf-8') as file:
        return list(csv.DictReader(file, delimiter='\t', quoting=csv.QUOTE_NONE))
