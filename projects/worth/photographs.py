"""Cut patches from the photographs in scikit-image, as a folder for `python -m projects.worth`. Nothing is downloaded.

    pip install scikit-image
    python -m projects.worth.photographs data/patches

The class of a patch is the photograph from which it was cut. All patches are gray, because colors alone would identify the
photograph. A photograph is divided into regions of 128 x 128 pixels. The patches of a region form a group, because neighbors
are similar. About every sixth patch has a label.
"""

import argparse
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from PIL import Image

from mmairl.errors import UserError, one_sentence_errors
from mmairl.io import write_text

# These photographs have at least 512 x 512 pixels.
PHOTOGRAPHS = (
    *('astronaut.png', 'brick.png', 'camera.png', 'cell.png', 'grass.png', 'gravel.png'),
    *('hubble_deep_field.jpg', 'ihc.png', 'moon.png', 'retina.jpg'),
)
# Widths in pixels: the center of a photograph from which patches are cut, a region, and a patch.
SIDE, REGION, PATCH = 512, 128, 32
LABELLED = 40  # number of labeled patches per class, spread evenly over the photograph


def cut(photograph: Path, folder: Path) -> list[str]:
    """Write the patches from the center of a photograph, and return the lines of its labels."""
    image = Image.open(photograph).convert('L')
    left, top = (image.width - SIDE) // 2, (image.height - SIDE) // 2
    places, lines = [*product(range(0, SIDE, PATCH), repeat=2)], []
    labelled = {round(number * len(places) / LABELLED) for number in range(LABELLED)}
    folder.mkdir(parents=True, exist_ok=True)
    for number, (y, x) in enumerate(places):
        region = y // REGION * (SIDE // REGION) + x // REGION
        name = f'{photograph.stem}_r{region:02}_{number:03}.png'
        image.crop((left + x, top + y, left + x + PATCH, top + y + PATCH)).save(folder / name)
        lines += [f'{name},{photograph.stem}'] if number in labelled else []
    return lines


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('folder', type=Path, help='write images/ and labels.csv to this folder')
    folder = parser.parse_args().folder
    if not (package := find_spec('skimage')):
        raise UserError(
            'photographs: requires the package scikit-image, which contains the photographs; run pip install scikit-image'
        )
    data = Path(package.origin).with_name('data')
    lines = [line for name in PHOTOGRAPHS for line in cut(data / name, folder / 'images')]
    write_text(folder / 'labels.csv', '\n'.join(['file,class', *lines]) + '\n')


if __name__ == '__main__':
    main()
