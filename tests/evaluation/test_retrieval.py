"""Retrieval: average precision and recall equal plain loops, and the published layout of Oxford and Paris is read."""

from pathlib import Path

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from PIL import Image

from mmairl.data.public import Landmarks
from mmairl.evaluation.feature_protocol import Split
from mmairl.evaluation.features import Features
from mmairl.evaluation.protocol import evaluate, settings_for
from mmairl.evaluation.retrieval import ranked


def average_precision_of_oxford(ranking: list[int], relevance: list[int]) -> float:
    """Compute the average precision in a loop, like compute_ap.cpp of the data sets' authors."""
    total = sum(value == 1 for value in relevance)
    recall, precision, ap = 0.0, 1.0, 0.0
    matches = rank = 0
    for image in ranking:
        if relevance[image] == -1:
            continue
        matches += relevance[image]
        rank += 1
        now = matches / rank
        ap += (matches / total - recall) * (precision + now) / 2
        recall, precision = matches / total, now
    return ap


def test_average_precision_equals_the_authors_loop():
    random = np.random.default_rng(0)
    similarity = torch.from_numpy(random.normal(size=(6, 30)))
    relevance = torch.from_numpy(random.choice([-1, 0, 1], (6, 30)))
    relevance[5] = 0
    precision, first = ranked(similarity, relevance)
    for row in range(5):
        order = similarity[row].argsort(descending=True).tolist()
        expected = average_precision_of_oxford(order, relevance[row].tolist())
        assert precision[row].item() == pytest.approx(expected)
        counted = [image for image in order if relevance[row, image] >= 0]
        assert first[row] == [int(relevance[row, image]) for image in counted].index(1)
    assert precision[5].isnan()


@pytest.mark.parametrize('gallery', ['test', 'train'])
def test_recall_equals_a_loop_over_queries(digits, gallery):
    train, test = digits
    test = Features(test.x[:200], test.y[:200])
    settings = settings_for('retrieval', gallery=gallery, ks=(1, 3))
    scores, _ = settings.score(Split(train, test, None, 'top-1', None))
    bank = test if gallery == 'test' else train
    similarity = torch.nn.functional.cosine_similarity(test.x[:, None], bank.x[None], dim=2)
    if gallery == 'test':
        similarity.fill_diagonal_(-2)
    for k in (1, 3):
        best = bank.y[similarity.topk(k).indices]
        expected = (best == test.y[:, None]).any(1).double().mean()
        assert scores[f'retrieval, recall@{k}'] == pytest.approx(100 * expected.item())


@pytest.fixture
def oxford(tmp_path) -> Path:
    for folder in ('images/sub', 'groundtruth'):
        (tmp_path / folder).mkdir(parents=True)
    values = dict(a=30, b=35, c=200, d=210, e=120)
    for name, value in values.items():
        pixels = np.full((40, 40, 3), value, np.uint8)
        pixels[:20] = 255 - value
        Image.fromarray(pixels).save(tmp_path / f'images/{"sub/" if name == "d" else ""}{name}.jpg')
    lists = {'one_query': 'oxc1_a 1 2 3 4', 'one_good': 'a\nb', 'one_ok': '', 'one_junk': 'e'}
    lists |= {'two_query': 'c 1 2 3 4', 'two_good': 'c', 'two_ok': 'd', 'two_junk': ''}
    for name, text in lists.items():
        (tmp_path / f'groundtruth/{name}.txt').write_text(text)
    return tmp_path


def test_landmarks_are_read_in_their_public_layout(oxford):
    queries, images = (Landmarks(oxford, split) for split in ('query', 'test'))
    assert [path.decode() for path in queries.files] == ['images/a.jpg', 'images/c.jpg']
    assert images.labels.T.tolist() == [[1, 1, 0, -1, 0], [0, 0, 1, 0, 1]], (
        'the labels are not those of the images a, b, c, e and d in this order'
    )
    (oxford / 'groundtruth/two_good.txt').unlink()
    with raises_code('unreadable-set'):
        Landmarks(oxford, 'test')


def test_landmarks_are_ranked_for_their_queries(cfg, oxford):
    views = [[dict(type='Resize', size=32)]]
    cfg.evaluation.train = dict(type='Landmarks', root=str(oxford), split='query', views=views)
    cfg.evaluation.test = dict(type='Landmarks', root=str(oxford), split='test', views=views)
    cfg.model.data_preprocessor.update(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    result = evaluate(cfg, 'retrieval', 'pixels')
    assert result.scores['retrieval, mAP'] == pytest.approx(100)
    with raises_code('unsupported-labels'):
        evaluate(cfg, 'knn', 'pixels')


def test_queries_without_any_match_are_an_error(digits):
    train, test = digits
    alone = Features(test.x[:3], torch.arange(3))
    with raises_code('no-positives'):
        settings_for('retrieval').score(Split(train, alone, None, 'top-1', None))
