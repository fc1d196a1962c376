"""The page that shows views, and the page with a map of images."""

import pytest
from harness import toy

from mmairl.config import load_config
from mmairl.report.views_page import SHOWN, write_views_page


@pytest.mark.parametrize('count', [5, 40])
def test_page_shows_images_and_views(tmp_path, count):
    options = {'train_dataloader.dataset.count': count}
    cfg = load_config(str(toy.CONFIGS / 'demo/mocov2plus_shapes.py'), options)
    text = write_views_page(cfg, tmp_path / 'page.html').read_text()
    assert text.count('alt="view 2"') == text.count('alt="image"') == min(SHOWN, count)
    assert 'RandomResizedCrop' in text
    again = write_views_page(cfg, tmp_path / 'again.html').read_text()
    assert (
        again == text and write_views_page(cfg, tmp_path / 'other.html', seed=1).read_text() != text
    )


def test_page_of_a_part_with_one_view(tmp_path):
    images = dict(type='Shapes', count=40, views=[[dict(type='RandomResizedCrop', size=16)]])
    cfg = load_config(str(toy.CONFIGS / 'demo/mocov2plus_shapes.py'))
    cfg.train_dataloader.dataset = dict(type='Subset', dataset=images)
    cfg.model.data_preprocessor.update(views=None, single_view=True)
    text = write_views_page(cfg, tmp_path / 'page.html').read_text()
    assert text.count('alt="view 1"') == SHOWN and 'alt="view 2"' not in text
    assert 'RandomResizedCrop' in text
