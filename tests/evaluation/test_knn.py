"""k-NN equals an exact search by scikit-learn and a vote by plain loops."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from mmairl.evaluation import knn as module
from mmairl.evaluation.features import Features
from mmairl.evaluation.knn import knn_predictions, nearest


def plain_votes(train: Features, test: Features, k: int, temperature: float) -> np.ndarray:
    search = NearestNeighbors(n_neighbors=k, metric='cosine', algorithm='brute')
    distances, rows = search.fit(train.x.double()).kneighbors(test.x.double())
    predicted = []
    for of_image, neighbors in zip(distances, rows):
        votes = np.zeros(int(train.y.max()) + 1)
        for distance, row in zip(of_image, neighbors):
            votes[train.y[row]] += np.exp((1 - distance) / temperature)
        predicted.append(votes.argmax())
    return np.array(predicted)


@pytest.mark.parametrize('k, temperature', [(1, 0.07), (20, 0.07), (50, 1.0)])
def test_knn_equals_an_exact_search(digits, monkeypatch, k, temperature):
    monkeypatch.setattr(module, 'BANK_BLOCK', 300)
    monkeypatch.setattr(module, 'QUERY_BLOCK', 200)
    predicted = knn_predictions(*digits, [k, 3], temperature)
    assert (predicted[k].numpy() == plain_votes(*digits, k, temperature)).all()
    assert (predicted[3].numpy() == plain_votes(*digits, 3, temperature)).all()


def test_scale_of_features_does_not_matter(digits):
    train, test = digits
    for scale in (1e-25, 1e25):
        scaled = Features(train.x * scale, train.y)
        assert torch.equal(nearest(test.x, scaled.x, 5)[1], nearest(test.x, train.x, 5)[1])


def test_large_k_means_all_training_images():
    train = Features(torch.eye(3), torch.tensor([0, 1, 1]))
    assert torch.equal(knn_predictions(train, train, [200])[3], train.y)
