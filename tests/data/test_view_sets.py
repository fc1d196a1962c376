"""Named view sets, the transforms that only these sets use, and the suggestion of a view set for a folder of images."""

import pytest
import torch
from harness.errors import raises_code

from mmairl.apis.suggest import config_for, full_size
from mmairl.checkpoints.read import input_of
from mmairl.config import load_config
from mmairl.data.datasets import build_views
from mmairl.data.shapes import Shapes
from mmairl.data.transforms import STAINS
from mmairl.data.view_sets import DOMAINS, named_views, reasons
from mmairl.engine.checkpoint import settings
from mmairl.evaluation.sets import with_views
from mmairl.study.scale import read_scale, resolve
from mmairl.study.spec import Row


@pytest.mark.parametrize('name', DOMAINS)
def test_named_views_have_transforms_and_reasons(name):
    views = Shapes(count=2, size=40, views=name)[0]['inputs']
    assert [view.shape for view in views] == [(3, 224, 224)] * 2
    assert all(why for _, why in reasons(name))


def test_named_views_have_the_crops_of_the_method():
    views = config_for('swav', 500, 'images', views='satellite').train_dataloader.dataset.views
    plain = load_config(full_size('swav')).train_dataloader.dataset['views']
    assert [view[0] for view in views] == [view[0] for view in plain]
    assert [step['type'] for step in views[0][1:]] == [step['type'] for step, _ in reasons('satellite')]


def test_unknown_view_set_is_an_error():
    with raises_code('unknown-views', r"'satelite'\); did you mean 'satellite'"):
        named_views('satelite')


def test_gray_images_have_no_rgb_transforms(tmp_path):
    views = config_for('byol', 500, 'images', views='microscopy', channels=1).train_dataloader.dataset.views
    assert 'StainJitter' not in str(views) and 'RandomTurn' in str(views)


def test_turn_has_eight_results_in_both_forms():
    [[turn]] = build_views([[dict(type='RandomTurn', p=1.0)]])
    image, seen = torch.arange(3 * 16, dtype=torch.uint8).reshape(3, 4, 4), set()
    for seed in range(60):
        torch.manual_seed(seed)
        single = turn(image)
        torch.manual_seed(seed)
        assert torch.allclose(turn.batch(image[None] / 255)[0] * 255, single.float(), atol=1e-3)
        seen.add(tuple(single.flatten().tolist()))
        assert sorted(single[0].flatten().tolist()) == sorted(image[0].flatten().tolist())
    assert len(seen) == 8
    assert {tuple(turn(torch.rand(2, 4, 6)).shape) for _ in range(20)} == {(2, 4, 6), (2, 6, 4)}, (
        'not only squares turn'
    )


def test_stains_change_only_in_amount():
    [[jitter]] = build_views([[dict(type='StainJitter', p=1.0, strength=0.5)]])
    # The third stain (DAB) is absent.
    amounts = torch.rand(1, 3, 8, 8) * torch.tensor([0.5, 0.3, 0.0]).view(3, 1, 1)
    images = (-torch.einsum('bshw,sc->bchw', amounts, STAINS)).exp()
    params = jitter.draw(1, 8, 8)
    back = torch.einsum('bchw,cs->bshw', -jitter.apply(images, params).log(), torch.linalg.inv(STAINS))
    assert torch.allclose(back, amounts * params['factors'].view(1, 3, 1, 1), atol=1e-4)
    assert back[:, 0].sum() > 0 and back[:, 2].abs().max() < 1e-4
    whole = torch.randint(0, 256, (3, 9, 7), dtype=torch.uint8)
    torch.manual_seed(0)
    single = jitter(whole)
    torch.manual_seed(0)
    assert (jitter.batch(whole[None] / 255)[0] * 255 - single).abs().max() < 0.52


def test_named_views_are_resolved_everywhere():
    cfg = load_config('mmairl::mocov2plus_r50_200e.py', {'train_dataloader.dataset.views': 'satellite'})
    assert input_of(settings(cfg)).size == 224, 'checkpoints do not state the image size of the views'
    assert with_views(cfg.evaluation.train, 'satellite')['views'] == named_views('satellite')
    row = Row('a', 'mocov2plus_r50_200e.py', {'train_dataloader.dataset.views': 'satellite'})
    (crop, *_), _ = resolve(row, read_scale('demo')).model.data_preprocessor.views
    assert crop['size'] == 28
