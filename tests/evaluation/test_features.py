"""Features are what the backbone returns for the right image, and nothing else is scored."""

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from torch import Tensor, nn

from mmairl.data.decode import UnreadableImage
from mmairl.errors import Diverged
from mmairl.evaluation.features import Extraction, extract, stored
from mmairl.registry import DATASETS

HOW = Extraction((0.4, 0.5, 0.6), (0.2, 0.25, 0.3), batch_size=7)
Noise = DATASETS.get('Noise')  # the conftest of this folder registers the data set


class Backbone(nn.Module):
    """A backbone whose output is the result of a function of the images."""

    def __init__(self, output) -> None:
        super().__init__()
        self.output = output

    def forward(self, images: Tensor):
        return self.output(images)


@pytest.mark.parametrize(
    'output, expected',
    [
        (lambda x: x.mean((2, 3)), lambda x: x.mean((2, 3))),
        (lambda x: x[:, :2], lambda x: x[:, :2].mean((2, 3))),
        (lambda x: (x[:, :1], x), lambda x: x.mean((2, 3))),
        (lambda x: x.flatten(2).transpose(1, 2), lambda x: x.mean((2, 3))),
    ],
)
def test_features_maps_and_tokens_are_pooled(output, expected):
    dataset = Noise()
    x = (dataset.images / 255 - torch.tensor(HOW.mean).view(3, 1, 1)) / torch.tensor(HOW.std).view(
        3, 1, 1
    )
    found = extract(Backbone(output), dataset, HOW)
    assert torch.allclose(found.x, expected(x), atol=1e-5)
    assert torch.equal(found.y, dataset.labels)


@pytest.mark.parametrize(
    'output',
    [
        lambda x: (x.mean((2, 3)), torch.ones(len(x), 4, dtype=torch.int64)),
        lambda x: x.mean((2, 3)).long(),
        lambda x: torch.rand(len(x), 8),
        lambda x: x.mean((0, 2, 3)),
        lambda x: x.mean((2, 3))[:2],
        lambda x: {'features': x},
        lambda x: 1 / 0,
    ],
    ids=['mask', 'integers', 'random', 'vector', 'fewer-rows', 'dictionary', 'raises'],
)
def test_other_outputs_are_never_scored(output):
    with raises_code('not-features'):
        extract(Backbone(output), Noise(), HOW)


def test_error_names_the_fault_of_the_features():
    with raises_code('not-features', match='two calls') as random:
        extract(Backbone(lambda x: torch.rand(len(x), 8)), Noise(), HOW)
    with raises_code('not-features', match='shape') as shape:
        extract(Backbone(lambda x: x.mean((2, 3))[:2]), Noise(), HOW)
    assert 'shape' not in str(random.value) and 'two calls' not in str(shape.value)


def test_nan_is_a_diverged_network():
    with pytest.raises(Diverged):
        extract(Backbone(lambda x: x.mean((2, 3)) / 0), Noise(), HOW)


def test_unreadable_images_have_no_row(monkeypatch, tmp_path):
    raw = Noise.raw

    def some(self, index: int) -> Tensor:
        if index % 4 == 1:
            raise UnreadableImage('is empty')
        return raw(self, index)

    whole = extract(None, Noise(), HOW)
    monkeypatch.setattr(Noise, 'raw', some)
    for found in (extract(None, Noise(), HOW), stored(tmp_path / 'x.npy', None, Noise(), HOW)):
        assert found.unreadable == tuple(range(1, 45, 4))
        kept = [row for row in range(45) if row % 4 != 1]
        assert torch.equal(found.x, whole.x[kept]) and torch.equal(found.y, whole.y[kept])


def test_stored_features_are_read_without_pickle(tmp_path):
    path = tmp_path / 'x.npy'
    first = stored(path, None, Noise(), HOW)
    assert np.array_equal(np.load(path), first.x)
    np.save(path, np.array([{}] * 45), allow_pickle=True)
    with raises_code('unreadable-features'):
        stored(path, None, Noise(), HOW)
