"""The page of views states the parameters that created each view, in a data worker or on the device."""

import re

import pytest
import torch
import torchvision.transforms.v2.functional as F
from harness.outline import sound
from mmengine import Config
from PIL import Image

from mmairl.data.shapes import Shapes
from mmairl.errors import UserError
from mmairl.registry import DATASETS, MODELS
from mmairl.report.sections import augmented
from mmairl.report.views_page import listen, steps_of, write_views_page

CROP = dict(type='RandomResizedCrop', size=40, scale=(0.2, 0.6))
REST = [
    dict(type='RandomFlip', p=0.5),
    dict(type='ColorJitter', p=0.7, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    dict(type='GaussianBlur', p=0.5),
    dict(type='Solarize', p=0.5),
]
SIDES = {
    'workers': ([[CROP, *REST]] * 2, None),
    'device': (None, [[CROP, *REST]] * 2),
    'both': ([[CROP]] * 2, [REST] * 2),
}
ADJUST = dict(
    brightness=F.adjust_brightness, contrast=F.adjust_contrast, saturation=F.adjust_saturation, hue=F.adjust_hue
)


def config(workers: list | None, device: list | None) -> Config:
    preprocessor = dict(type='ViewPreprocessor', mean=[0.5] * 3, std=[0.25] * 3, views=device)
    loader = dict(dataset=dict(type='Shapes', split='train', count=96, size=24, views=workers))
    return Config(dict(model=dict(data_preprocessor=preprocessor), train_dataloader=loader))


def redone(image: torch.Tensor, steps: list[tuple[str, bool]]) -> torch.Tensor:
    """Return the view that torchvision creates from only the parameters that the page states."""
    image = image / 255
    for words, parameters in steps:
        kind, *rest = re.split(r'[ ,]+', words)
        numbers = dict(zip(rest[::2], map(float, rest[1::2])))
        if not parameters:
            continue
        if kind == 'RandomResizedCrop':
            box = [int(numbers[key]) for key in ('top', 'left', 'height', 'width')]
            image = F.resized_crop(image, *box, [40, 40], antialias=True)
        elif kind == 'ColorJitter':
            for name, amount in numbers.items():
                image = ADJUST[name](image, amount)
        elif kind == 'GaussianBlur':
            image = F.gaussian_blur(image, [5, 5], [numbers['sigma']] * 2)
        else:
            image = F.horizontal_flip(image) if kind == 'RandomFlip' else F.solarize(image, 127.5 / 255)
    return image


@pytest.mark.parametrize('side', SIDES)
def test_view_follows_from_the_stated_parameters(side):
    cfg = config(*SIDES[side])
    dataset, preprocessor = DATASETS.build(cfg.train_dataloader.dataset), MODELS.build(cfg.model.data_preprocessor)
    records, chosen = [listen(dataset.views), listen(preprocessor.views or [])], list(range(24))
    views = augmented(dataset, preprocessor, chosen)
    seen_words = {words.split()[0]: set() for step in REST for words in [step['type']]}
    for number, view in enumerate(views):
        for place in chosen:
            steps, box = steps_of(records, number, place)
            off = redone(dataset.raw(place), steps) - view[place] / 255
            # Parameters on the page have two decimals, so pixels near the threshold may or may not
            # be solarized.
            assert off.abs().quantile(0.9) < 0.03, steps
            for words, parameters in steps[1:]:
                seen_words[words.split()[0]].add(parameters)
            assert box.keys() == {'left', 'top', 'width', 'height'} and box['left'] + box['width'] < 100.01
    assert all(applied == {True, False} for applied in seen_words.values())


def test_command_shows_views_of_a_folder(tmp_path, run_tool, capsys):
    shapes = Shapes('train', count=13, size=40)
    for index in range(13):
        Image.fromarray(shapes.raw(index).permute(1, 2, 0).numpy()).save(tmp_path / f'{index}<b>.png')
    page, folder = tmp_path / 'page.html', 'configs/mocov2plus_r18_folder_100e.py'
    run_tool('tools/report.py', 'views', folder, '--root', tmp_path, '--out', page)
    assert capsys.readouterr().out.strip() == str(page)
    text = page.read_text()
    outline = sound(text)
    assert outline.counts['img'] == 12 * 3 and outline.counts['ol'] == 12 * 2 and outline.counts['rect'] == 12 * 2
    assert '12 of the 13 images of mocov2plus_r18_folder_100e.py' in text and '&lt;b&gt;.png' in text
    run_tool('tools/report.py', 'views', folder, '--root', tmp_path, '--views', 'microscopy', '--out', page)
    text = page.read_text()
    assert sound(text).counts['img'] == 12 * 3 and 'StainJitter: the amount of stain differs' in text
    with pytest.raises(SystemExit):
        run_tool('tools/report.py', 'views', folder, '--root', tmp_path, '--views', 'microscop', '--out', page)
    assert "views: unknown name ('microscop'); did you mean 'microscopy'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run_tool('tools/report.py', 'views', folder, '--root', tmp_path / 'none', '--out', page)
    assert 'none: the image folder does not exist' in capsys.readouterr().err


def test_config_without_views_raises(tmp_path):
    cfg = config(None, None)
    cfg.model.data_preprocessor = dict(type='BaseDataPreprocessor')
    with pytest.raises(UserError) as error:
        write_views_page(cfg, tmp_path / 'page.html')
    assert error.value.code == 'no-views-to-show'
