"""Test the functions of dense_controls.py that replace the features of cells (positions of a feature map)."""

import pytest
import torch

from mmairl.evaluation.dense_protocol import CellFeatures
from mmairl.evaluation.protocol import settings_for
from projects.benchmark.dense_controls import averaged, changed_cells, exchanged, interval, scenes


class Pixels:
    """Replace CellFeatures: the features are every eighth pixel of the images."""

    protocol = settings_for('segment', scenes(0))

    def __call__(self, images):
        return images[:, :, ::8, ::8].float()


def test_averaged_cells_hold_the_mean_of_their_image():
    x = torch.rand(2, 3, 4, 4)
    averages = averaged(Pixels(), x)
    assert averages.shape == x.shape
    torch.testing.assert_close(averages[1, :, 2, 3], x[1].mean((1, 2)))


def test_exchanged_cells_come_from_other_images():
    change = exchanged(scenes(0), seed=0)
    x = torch.full((2, 3, 4, 4), -1.0)
    first, second = change(Pixels(), x), change(Pixels(), x)
    assert first.shape == x.shape
    assert first.min() >= 0, 'a cell of x was not exchanged'
    assert not first.equal(second), 'two batches got the same cells'


def test_features_are_restored_after_an_evaluation():
    plain = CellFeatures.__call__
    with pytest.raises(KeyError), changed_cells(averaged):
        assert CellFeatures.__call__ is not plain
        raise KeyError
    assert CellFeatures.__call__ is plain


def test_interval_is_students():
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((-0.484, 2.0, 4.484), abs=1e-3)
