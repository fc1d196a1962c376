"""Drawn images are balanced, reproducible and cached."""

import numpy as np
import pytest
from PIL import Image

from mmairl.data.shapes import CONTRAST, KINDS, LUMA, Shapes, draw_shapes


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


def test_image_depends_only_on_seed_split_and_index():
    few, many = Shapes(count=14), Shapes(count=26)
    assert np.array_equal(few.images, many.images[:14]) and many.labels.tolist() == [
        i % 12 for i in range(26)
    ]
    assert (Shapes('val', count=14).images != few.images).any() and (
        Shapes(count=14, seed=1).images != few.images
    ).any()
    cached = Shapes(count=14)
    assert isinstance(cached.images, np.memmap) and np.array_equal(cached.images, few.images)


def test_kinds_cover_the_area_of_their_shapes():
    """The shoelace formula gives the area of an outline, also of an outline with a hole."""

    def area(points: np.ndarray) -> float:
        return abs(np.sum(points.conj() * np.roll(points, -1)).imag) / 2

    areas = {name: area(points) for name, points in KINDS.items()}
    assert abs(areas['disc'] - np.pi * 0.81) < 0.03 and abs(areas['square'] - 1.56**2) < 1e-9
    assert (
        abs(areas['ring'] - np.pi * (0.96**2 - 0.52**2)) < 0.03
        and abs(areas['frame'] - (1.68**2 - 0.88**2)) < 1e-9
    )
    assert (
        abs(areas['plus'] - (2 * 1.96 * 0.56 - 0.56**2)) < 1e-9 and abs(areas['bar'] - 1.2) < 1e-9
    )
    assert all(np.abs(points).max() <= 1.2 for points in KINDS.values())


def test_contrast_of_luminance_is_in_range():
    random, center = np.random.default_rng(0), np.array([20 + 20j])
    found = []
    for gray in range(20, 240, 2):
        image = Image.new('RGB', (40, 40), (gray,) * 3)
        draw_shapes(image, [0], center, np.array([9.0]), random)
        found.append(abs(np.dot(image.getpixel((20, 20)), LUMA) - gray) / 255)
    # Clipping of single channels lowers the difference of some colors.
    assert max(found) < CONTRAST[1] + 0.01 and np.mean(np.array(found) > CONTRAST[0] - 0.01) > 0.8
