"""Drawn images are balanced, reproducible and cached."""

import numpy as np
import pytest
from PIL import Image

from mmairl.data.shapes import CONTRAST, KINDS, LUMA, Shapes, draw_shapes


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


def test_image_depends_only_on_seed_split_and_index():
    few = Shapes(count=14)
    many = Shapes(count=26)
    assert np.array_equal(few.images, many.images[:14])
    assert many.labels.tolist() == [i % 12 for i in range(26)]
    assert (Shapes('val', count=14).images != few.images).any()
    assert (Shapes(count=14, seed=1).images != few.images).any()
    cached = Shapes(count=14)
    assert isinstance(cached.images, np.memmap)
    assert np.array_equal(cached.images, few.images)


def test_kinds_have_different_areas_within_the_radius():
    """The shoelace formula gives the area of an outline, also of an outline with a hole."""
    areas = {}
    for name, points in KINDS.items():
        assert np.abs(points).max() <= 1.2
        areas[name] = abs(np.sum(points.conj() * np.roll(points, -1)).imag) / 2
    assert len({round(area, 3) for area in areas.values()}) == 12
    assert areas['frame'] == pytest.approx(1.68**2 - 0.88**2)
    assert areas['plus'] == pytest.approx(2 * 1.96 * 0.56 - 0.56**2)
    assert areas['ring'] == pytest.approx(np.pi * (0.96**2 - 0.52**2), abs=0.03)


def test_contrast_of_luminance_is_in_range():
    random = np.random.default_rng(0)
    center = np.array([20 + 20j])
    found = []
    for gray in range(20, 240, 2):
        image = Image.new('RGB', (40, 40), (gray,) * 3)
        draw_shapes(image, [0], center, np.array([9.0]), random)
        found.append(abs(np.dot(image.getpixel((20, 20)), LUMA) - gray) / 255)
    # Clipping of single channels lowers the difference of some colors.
    assert max(found) < CONTRAST[1] + 0.01
    assert np.mean(np.array(found) > CONTRAST[0] - 0.01) > 0.8
