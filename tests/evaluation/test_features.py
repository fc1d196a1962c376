from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from mmairl.errors import UserError
from mmairl.evaluation.features import Extraction, extract, stored
from mmairl.registry import DATASETS

Noise = DATASETS.get('Noise')  # registered by this folder's conftest
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
HOW = Extraction(MEAN, STD)


class Channels(nn.Module):
    """Two feature maps; the last holds the images themselves, so that its average can be told in advance."""

    def forward(self, images):
        return images[:, :1], images


def normalised(dataset) -> np.ndarray:
    images = dataset.images.numpy().astype(np.float64) / 255
    return (images - np.reshape(MEAN, (1, 3, 1, 1))) / np.reshape(STD, (1, 3, 1, 1))


def test_features_are_the_last_map_averaged_over_space_in_order():
    dataset = Noise()
    features = extract(Channels(), dataset, Extraction(MEAN, STD, batch_size=7))
    np.testing.assert_allclose(features.x, normalised(dataset).mean(axis=(2, 3)), atol=1e-5)
    assert features.x.dtype == torch.float32 and torch.equal(features.y, dataset.labels)


def test_without_a_backbone_the_pixels_are_the_features():
    dataset = Noise()
    np.testing.assert_allclose(extract(None, dataset, HOW).x, normalised(dataset).reshape(45, -1), atol=1e-5)


def test_batch_norm_uses_and_keeps_its_running_statistics():
    backbone = nn.Sequential(nn.BatchNorm2d(3))
    whole = extract(backbone, Noise(), Extraction(MEAN, STD, batch_size=45))
    single = extract(backbone, Noise(), Extraction(MEAN, STD, batch_size=1))
    torch.testing.assert_close(whole.x, single.x)
    assert backbone[0].num_batches_tracked == 0


def test_nan_features_name_the_first_image():
    class Breaks(nn.Module):
        def forward(self, images):
            return images.mean((2, 3)).masked_fill(images.mean((1, 2, 3), keepdim=False)[:, None] > 0.5, torch.nan)

    with pytest.raises(UserError, match='image 2 has NaN or infinite features'):
        extract(Breaks(), Noise(), HOW)


def test_empty_and_unlabelled_data_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match='empty'):
        stored(tmp_path / 'a.npy', None, Noise(0), HOW)
    unlabelled = Noise()
    unlabelled.labels = torch.full((45,), -1)
    for find in (extract, partial(stored, tmp_path / 'a.npy')):
        with pytest.raises(UserError, match='without a label'):
            find(None, unlabelled, HOW)
