"""Scores equal scikit-learn's, independent loops, or results that were computed by hand."""

import dataclasses
import json
from fractions import Fraction

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from sklearn.metrics import average_precision_score, balanced_accuracy_score, top_k_accuracy_score

from mmairl.evaluation.metrics import (
    HeadAccuracy,
    ap11,
    average_precision,
    confusion,
    mean_ap,
    scores_of,
    shot_report,
)
from mmairl.evaluation.protocol import evaluate
from mmairl.report.evaluation_page import write_evaluation_page


def drawn(images: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(images, classes, generator=generator), torch.randint(classes, (images,), generator=generator)


def multi_labels(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    scores, _ = drawn(120, 4, seed)
    return scores, torch.randint(-1, 2, (120, 4), generator=torch.Generator().manual_seed(seed + 1))


@pytest.mark.parametrize('classes', [5, 6])
def test_accuracies_equal_scikit_learns(classes):
    scores, y = drawn(500, classes, seed=classes)
    labels = range(classes)
    results = scores_of('top-1', scores, y)
    assert results.pop('top-1') == pytest.approx(100 * top_k_accuracy_score(y, scores, k=1, labels=labels), abs=1e-9)
    top5 = {'top-5': 100 * top_k_accuracy_score(y, scores, k=5, labels=labels)} if classes > 5 else {}
    assert results == pytest.approx(top5, abs=1e-9)
    # Class 1 has no image. It must not count as a class with recall 0.
    y[y == 1] = 2
    balanced = 100 * balanced_accuracy_score(y, scores.argmax(1))
    assert scores_of('mean per class', scores, y) == pytest.approx({'mean per class': balanced}, abs=1e-9)


def eleven_points(scores: list[float], y: list[int]) -> Fraction:
    """Compute the 11-point average precision by its definition, in exact fractions."""
    points = []
    for threshold in set(scores):
        selected = [label for score, label in zip(scores, y) if score >= threshold]
        points.append((Fraction(sum(selected), sum(y)), Fraction(sum(selected), len(selected))))
    best = [max(precision for recall, precision in points if recall >= Fraction(t, 10)) for t in range(11)]
    return sum(best) / 11


@pytest.mark.parametrize('positives', [1, 3, 30])
@pytest.mark.parametrize('ties', [False, True])
def test_eleven_points_equal_a_plain_loop_in_any_order(positives, ties):
    scores, _ = drawn(60, 1, positives)
    scores = scores.squeeze(1).mul(3).round() if ties else scores.squeeze(1)
    y = (torch.arange(60) < positives).long()
    reference = pytest.approx(float(eleven_points(scores.tolist(), y.tolist())), abs=1e-12)
    assert ap11(scores, y) == ap11(scores.flip(0), y.flip(0)) == reference
    assert average_precision(torch.ones(60), y) == positives / 60


def test_mean_ap_ignores_difficult_images_per_class():
    scores, labels = multi_labels()
    plain, eleven = [], []
    for label in range(4):
        rows = [row for row in range(120) if labels[row, label] >= 0]
        plain.append(average_precision_score(labels[rows, label], scores[rows, label]))
        eleven.append(float(eleven_points(scores[rows, label].tolist(), labels[rows, label].tolist())))
    results = scores_of('11-point mAP', scores, labels)
    assert results == pytest.approx({'mAP (11 points)': 100 * np.mean(eleven), 'mAP': 100 * np.mean(plain)}, abs=1e-10)
    assert mean_ap(scores, labels.clamp(min=0)) != pytest.approx(np.mean(plain), abs=1e-3)
    labels[:, 3] = 0
    assert mean_ap(scores, labels) == pytest.approx(np.mean(plain[:3]), abs=1e-12)


def test_shot_scores_are_means_over_classes():
    counts = torch.tensor([101, 500, 100, 20, 19, 0])
    y = torch.tensor([0, 0, 0, 0, 1, 2, 2, 3, 4, 5])
    predicted = torch.tensor([0, 0, 0, 9, 2, 2, 2, 1, 4, 0])
    # The recalls are 3/4 and 0/1 for many-shot classes, 2/2 and 0/1 for medium-shot classes (20 to
    # 100 images), and 1/1 and 0/1 for few-shot classes.
    assert shot_report(predicted, y, counts) == {'many': 37.5, 'medium': 50.0, 'few': 50.0}
    assert shot_report(predicted[:5], y[:5], counts) == {'many': 37.5}
    with raises_code('label-out-of-range'):
        shot_report(predicted, y, counts[:5])


@pytest.mark.parametrize(
    'metric, labels, code',
    [
        ('top-1', torch.tensor([0, 3]), 'label-out-of-range'),
        ('11-point mAP', torch.zeros(2, 3), 'no-positives'),
        ('accuracy', torch.tensor([0, 1]), 'unknown-metric'),
    ],
)
def test_impossible_scores_raise(metric, labels, code):
    with raises_code(code):
        scores_of(metric, torch.rand(2, 3), labels.long())
    with raises_code('scores-not-finite', match='1 of 2 images'):
        scores_of(metric, torch.tensor([[0.0, torch.nan], [0.0, 1.0]]), labels.long())


def fed(metric: HeadAccuracy, scores: torch.Tensor, labels: torch.Tensor, size: int) -> dict[str, float]:
    for s, y in zip(scores.split(size), labels.split(size)):
        metric.process({}, [dict(scores=s, label=y)])
    return metric.evaluate(len(labels))


@pytest.mark.parametrize('kind, heads', [('top-1', 3), ('mean per class', 3), ('11-point mAP', 1)])
def test_each_head_has_the_scores_of_the_metric(kind, heads):
    scores, labels = multi_labels() if 'mAP' in kind else drawn(120, 8, 0)
    scores = torch.stack([scores.roll(head, 0) for head in range(heads)], dim=1)
    results = fed(HeadAccuracy(kind), scores, labels, 7)
    for head in range(heads):
        for name, value in scores_of(kind, scores[:, head], labels).items():
            assert results.pop(f'{name}@{head}' if heads > 1 else name) == pytest.approx(value)
    assert not results


def test_long_tail_adds_scores_by_class_size():
    scores, labels = drawn(60, 6, 0)
    counts = [500, 200, 90, 40, 15, 5]
    results = fed(HeadAccuracy(train_counts=counts), scores[:, None], labels, 60)
    for group, value in shot_report(scores.argmax(1), labels, torch.tensor(counts)).items():
        assert results[f'{group}-shot'] == pytest.approx(value)
    assert {'many-shot', 'medium-shot', 'few-shot', 'top-1', 'top-5'} == set(results)


@pytest.mark.parametrize('protocol', ['knn', 'logreg'])
def test_confusion_matrix_is_counted_and_on_the_page(cfg, tmp_path, protocol):
    result = evaluate(cfg, protocol, 'random')
    matrix = result.details['confusion']
    counts = np.array(matrix['counts'])
    assert matrix['classes'] == ['dark', 'mid', 'bright']
    assert counts.sum(1).tolist() == [10, 10, 10]
    assert 100 * counts.trace() / 30 == pytest.approx(next(iter(result.scores.values())))
    record = dict(protocol=protocol, config='a.py', **dataclasses.asdict(result))
    (tmp_path / 'x.json').write_text(json.dumps(record, default=str))
    assert 'confusion matrix' in write_evaluation_page(tmp_path).read_text()


def test_many_classes_have_no_confusion_matrix():
    assert confusion(torch.tensor([0]), torch.tensor([0]), range(51)) is None
