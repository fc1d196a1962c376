import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from mmairl.evaluation import knn, neighbors
from mmairl.evaluation.features import Features


@pytest.mark.parametrize('scale, offset', [(1, 0), (1e-40, 0), (1e-25, 0), (1e37, 0), (1, 1e4)])
def test_accuracy_equals_scikit_learns(digits, scale, offset):
    """The cases include norms whose squares underflow or overflow, and cosines that are equal in float32."""
    train, test = (Features(scale * (part.x + offset), part.y) for part in digits)
    # scikit-learn would treat rows with a small norm as zero, so it gets the unscaled features.
    x, x_test = (part.x.double().numpy() / scale for part in (train, test))
    for k, right in knn.knn_right(train, test, [1, 20, 200]).items():
        # scikit-learn measures the distance 1 - cosine, while a vote has the weight exp(cosine /
        # temperature).
        reference = KNeighborsClassifier(k, metric='cosine', weights=lambda distance: np.exp((1 - distance) / 0.07))
        expected = 100 * reference.fit(x, train.y).score(x_test, test.y)
        assert 100 * right.double().mean().item() == pytest.approx(expected, abs=1e-4)


def test_blocks_equal_the_full_similarity_matrix(digits, monkeypatch):
    train, test = digits
    monkeypatch.setattr(neighbors, 'QUERY_BLOCK', 100)
    monkeypatch.setattr(neighbors, 'BANK_BLOCK', 37)
    similarity, position = neighbors.nearest(test.x, train.x, 50)
    queries, bank = (
        part.x.double().numpy() / np.linalg.norm(part.x.double(), axis=1, keepdims=True) for part in (test, train)
    )
    whole = queries @ bank.T
    np.testing.assert_allclose(similarity, -np.sort(-whole, axis=1)[:, :50], atol=1e-5)
    similarities = np.take_along_axis(whole, position.numpy(), axis=1)
    np.testing.assert_allclose(similarities, similarity, atol=1e-5)
    assert all(len(set(row)) == 50 for row in position.tolist())


def test_near_neighbor_outvotes_two_far_ones():
    for temperature, apart in ((0.07, 0.1), (1e-4, 0.001)):
        near = torch.tensor([[1.0, 1 - apart, 1 - apart]], dtype=torch.float64)
        scores = neighbors.vote(near, torch.tensor([[1, 0, 0]]), 3, temperature)
        np.testing.assert_allclose(scores[0], [2 * np.exp(-apart / temperature), 1, 0], rtol=1e-5)


def test_k_above_the_count_uses_all_images(digits):
    right, expected = (knn.knn_right(*digits, ks=[20, k]) for k in (5000, 1200))
    assert list(right) == list(expected) == [20, 1200]
    assert all(right[k].equal(expected[k]) for k in right)


def test_first_k_stays_first_above_the_count(digits):
    assert list(knn.knn_right(*digits, ks=[5000, 20])) == [len(digits[0].x), 20]
