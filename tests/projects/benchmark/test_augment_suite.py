"""What the suites of augmentation and loading compare is what they say; that each runs is tested with the others."""

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from PIL import Image

from mmairl.data.folders import ImageFolder
from mmairl.data.packed import Packed, pack
from projects.benchmark import augment, loader

VIEWS = Path(__file__).parents[3] / 'configs/_base_/views'


def test_the_views_are_those_of_the_configs():
    assert [*augment.CROP, *augment.REST] == list(Config.fromfile(VIEWS / 'mocov2.py').mocov2_view)


def test_every_peer_makes_two_views_of_each_image_as_bytes():
    photographs = [augment.photograph(0), augment.photograph(1)]
    ours = [augment.worker_views([*augment.CROP, *augment.REST])(augment.tensor(pixels)) for pixels in photographs]
    for name, peer in augment.worker_peers(photographs).items():
        made = peer()
        assert [len(pair) for pair in made] == [2, 2], name
        augment.same_shapes(ours, made)
        assert not any(torch.equal(*pair) for pair in made), name
    with pytest.raises(AssertionError):
        augment.same_shapes(ours, [[view.float() for view in pair] for pair in ours])


def test_decoders_that_claim_the_same_pixels_are_held_to_it(tmp_path):
    files = loader.write(tmp_path, 10)
    assert len({path.parent for path in files}) == 8 and Image.open(files[0]).size == (500, 375)
    cases = list(loader.decoding([path.read_bytes() for path in files[:2]]))
    for case in cases:
        if case.check is not None:
            case.check(case.ours(), case.peer())
    with pytest.raises(AssertionError):
        loader.same_pixels([torch.zeros(3)], [torch.ones(3)])
    with pytest.raises(ValueError):
        loader.same_pixels([torch.zeros(3)], [])


def test_an_epoch_goes_over_all_images_and_files_and_archive_give_the_same(tmp_path):
    loader.write(tmp_path / 'images', 40)
    for _ in pack(ImageFolder(tmp_path / 'images'), tmp_path / 'images.tar'):
        pass
    view = [dict(type='Resize', size=16), dict(type='CenterCrop', size=16)]
    files, packed = ImageFolder(tmp_path / 'images', views=[view]), Packed(tmp_path / 'images.tar', views=[view])
    last, same = loader.epoch(files, 0)(), loader.epoch(packed, 1)()
    assert last['data_samples']['index'].tolist() == list(range(32, 40))
    assert torch.equal(last['inputs'][0], same['inputs'][0])
