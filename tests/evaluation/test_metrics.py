"""Every score against scikit-learn, an independent loop or a case worked by hand."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, balanced_accuracy_score, top_k_accuracy_score

from mmairl.errors import UserError
from mmairl.evaluation.metrics import (
    HeadAccuracy,
    ap11,
    average_precision,
    mean_ap,
    scores_of,
    shot_report,
)


def drawn(images: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(images, classes, generator=generator), torch.randint(classes, (images,), generator=generator)


@pytest.mark.parametrize('classes', [3, 5, 6])
def test_accuracies_equal_scikit_learns(classes):
    scores, y = drawn(500, classes, seed=classes)
    labels = range(classes)
    found = scores_of('top-1', scores, y)
    assert found.pop('top-1') == pytest.approx(100 * top_k_accuracy_score(y, scores, k=1, labels=labels), abs=1e-9)
    top5 = {'top-5': 100 * top_k_accuracy_score(y, scores, k=5, labels=labels)} if classes > 5 else {}
    assert found == pytest.approx(top5, abs=1e-9)
    y[y == 1] = 2  # class 1 is absent and must not count as one that is always missed
    balanced = 100 * balanced_accuracy_score(y, scores.argmax(1))
    assert scores_of('mean per class', scores, y) == pytest.approx({'mean per class': balanced}, abs=1e-9)


@pytest.mark.parametrize('values', [None, 7, 2, 1], ids=lambda values: f'{values or "no"} ties')
@pytest.mark.parametrize('seed', range(5))
def test_average_precision_equals_scikit_learns(values, seed):
    scores, y = drawn(200, 2, seed)
    scores = scores[:, 0] if values is None else (scores[:, 0] * 10).long() % values
    assert average_precision(scores, y) == pytest.approx(average_precision_score(y, scores), abs=1e-12)


def test_eleven_points_by_hand():
    # Ranked: yes, no, yes, no, no, yes, no, yes. Recalls 1/4, 2/4, 3/4, 1 with precisions 1, 2/3, 3/6, 4/8.
    y = torch.tensor([1, 0, 1, 0, 0, 1, 0, 1])
    scores = torch.arange(8, 0, -1).float()
    # recall 0, .1, .2: 1; .3, .4, .5: 2/3; .6, .7: 1/2; .8, .9, 1: 1/2
    assert ap11(scores, y) == pytest.approx((3 * 1 + 3 * 2 / 3 + 5 * 1 / 2) / 11, abs=1e-12)


def test_a_recall_of_three_tenths_reaches_the_point_0_3():
    # Three of ten found first, then ten others, then the rest: precision 1 at 0, .1, .2 and .3, then 10/20 at the end.
    # In floats 3 * 0.1 is more than 3 / 10.
    y = torch.tensor([1] * 3 + [0] * 10 + [1] * 7)
    assert ap11(torch.arange(20, 0, -1).float(), y) == pytest.approx((4 * 1 + 7 * 10 / 20) / 11, abs=1e-12)


def eleven_points(scores: list[float], y: list[int]) -> Fraction:
    """The definition, threshold by threshold, in exact fractions."""
    points = []
    for threshold in set(scores):
        taken = [label for score, label in zip(scores, y) if score >= threshold]
        points.append((Fraction(sum(taken), sum(y)), Fraction(sum(taken), len(taken))))
    best = [max(precision for recall, precision in points if recall >= Fraction(t, 10)) for t in range(11)]
    return sum(best) / 11


@pytest.mark.parametrize('positives', [1, 3, 10, 30])
@pytest.mark.parametrize('ties', [False, True])
def test_eleven_points_equal_a_plain_loop(positives, ties):
    scores, _ = drawn(60, 1, positives)
    scores = scores.squeeze(1).mul(3).round() if ties else scores.squeeze(1)
    y = (torch.arange(60) < positives).long()
    assert ap11(scores, y) == pytest.approx(float(eleven_points(scores.tolist(), y.tolist())), abs=1e-12)


def test_the_order_of_images_with_the_same_score_changes_nothing():
    y, scores = torch.tensor([1, 0, 0, 1]), torch.ones(4)
    assert ap11(scores, y) == ap11(scores, y.flip(0)) == average_precision(scores, y) == 0.5


def multi_labels(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    scores, _ = drawn(120, 4, seed)
    labels = torch.randint(-1, 2, (120, 4), generator=torch.Generator().manual_seed(seed + 1))
    return scores, labels


def test_mean_ap_leaves_difficult_images_out_class_by_class():
    scores, labels = multi_labels()
    plain, eleven = [], []
    for label in range(4):
        rows = [row for row in range(120) if labels[row, label] >= 0]
        plain.append(average_precision_score(labels[rows, label], scores[rows, label]))
        eleven.append(float(eleven_points(scores[rows, label].tolist(), labels[rows, label].tolist())))
    assert mean_ap(scores, labels) == pytest.approx(np.mean(plain), abs=1e-12)
    assert mean_ap(scores, labels, points=11) == pytest.approx(np.mean(eleven), abs=1e-12)
    assert mean_ap(scores, labels.clamp(min=0)) != pytest.approx(np.mean(plain), abs=1e-3)
    labels[:, 3] = 0
    assert mean_ap(scores, labels) == pytest.approx(np.mean(plain[:3]), abs=1e-12)


def test_shots_are_means_over_the_classes_of_a_group():
    counts = torch.tensor([101, 500, 100, 20, 19, 0])
    y = torch.tensor([0, 0, 0, 0, 1, 2, 2, 3, 4, 5])
    predicted = torch.tensor([0, 0, 0, 9, 2, 2, 2, 1, 4, 0])
    # many: 3/4 and 0/1; medium, which is 20 to 100: 2/2 and 0/1; few: 1/1 and 0/1
    assert shot_report(predicted, y, counts) == {'many': 37.5, 'medium': 50.0, 'few': 50.0}
    assert shot_report(predicted[:5], y[:5], counts) == {'many': 37.5}
    with pytest.raises(UserError, match='label 5 is out of range'):
        shot_report(predicted, y, counts[:5])


def test_several_labels_have_two_names_in_percent():
    scores, labels = multi_labels()
    assert scores_of('11-point mAP', scores, labels) == {
        'mAP (11 points)': 100 * mean_ap(scores, labels, 11),
        'mAP': 100 * mean_ap(scores, labels),
    }


def test_a_perfect_ranking_scores_a_hundred():
    assert scores_of('top-1', torch.eye(7), torch.arange(7)) == {'top-1': 100.0, 'top-5': 100.0}
    assert scores_of('mean per class', torch.eye(3), torch.arange(3)) == {'mean per class': 100.0}
    assert scores_of('11-point mAP', torch.eye(3), torch.eye(3).long()) == {'mAP (11 points)': 100.0, 'mAP': 100.0}


@pytest.mark.parametrize(
    'metric,labels,sentence',
    [
        ('top-1', torch.tensor([0, 3]), 'label 3 is out of range: the classifier has 3 classes, 0 to 2'),
        ('mean per class', torch.tensor([0, -1]), 'label -1 is out of range'),
        ('top-1', torch.zeros(2, 3), r'labels of shape \(2, 3\) are not one class an image'),
        ('11-point mAP', torch.tensor([0, 1]), r'labels of shape \(2,\) do not say yes or no for each of 3 classes'),
        ('11-point mAP', torch.zeros(2, 4), r'labels of shape \(2, 4\) do not'),
        ('11-point mAP', torch.full((2, 3), 2), 'label 2 is out of range'),
        ('11-point mAP', torch.zeros(2, 3), 'no image is of any class'),
        ('accuracy', torch.tensor([0, 1]), "metric='accuracy' of the data set is not known"),
    ],
)
def test_what_cannot_be_scored_is_one_sentence(metric, labels, sentence):
    with pytest.raises(UserError, match=sentence):
        scores_of(metric, torch.rand(2, 3), labels.long())


def test_broken_scores_and_a_class_without_a_positive_are_one_sentence():
    with pytest.raises(UserError, match='1 of 2 images have scores that are NaN'):
        scores_of('top-1', torch.tensor([[0.0, float('nan')], [0.0, 1.0]]), torch.tensor([0, 1]))
    for measure in (average_precision, ap11):
        with pytest.raises(UserError, match='without a positive image has no average precision'):
            measure(torch.rand(4), torch.zeros(4))


def fed(metric: HeadAccuracy, scores: torch.Tensor, labels: torch.Tensor, size: int) -> dict[str, float]:
    for s, y in zip(scores.split(size), labels.split(size)):
        metric.process({}, [dict(scores=s, label=y)])
    return metric.evaluate(len(labels))


@pytest.mark.parametrize('kind', ['top-1', 'mean per class'])
@pytest.mark.parametrize('size', [7, 50])
def test_each_head_has_the_scores_of_the_data_sets_metric(kind, size):
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(50, 3, 8, generator=generator), torch.randint(8, (50,), generator=generator)
    found = fed(HeadAccuracy(kind), scores, labels, size)
    for head in range(3):
        for name, value in scores_of(kind, scores[:, head], labels).items():
            assert found.pop(f'{name}@{head}') == pytest.approx(value)
    assert not found


def test_images_that_pad_the_last_batch_of_a_sampler_do_not_count():
    metric = HeadAccuracy()
    scores = torch.eye(6)[:, None]
    metric.process({}, [dict(scores=torch.cat([scores, scores[:2]]), label=torch.tensor([0, 1, 2, 3, 4, 5, 5, 5]))])
    assert metric.evaluate(6)['top-1'] == 100


def test_several_labels_an_image_are_scored_by_average_precision():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(40, 1, 4, generator=generator)
    labels = torch.randint(-1, 2, (40, 4), generator=generator)
    assert fed(HeadAccuracy('11-point mAP'), scores, labels, 9) == pytest.approx(
        scores_of('11-point mAP', scores[:, 0], labels)
    )


def test_a_long_tail_is_scored_by_its_parts_too():
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(60, 1, 6, generator=generator), torch.arange(60) % 6
    counts = [500, 200, 90, 40, 15, 5]
    found = fed(HeadAccuracy(train_counts=counts), scores, labels, 60)
    for group, value in shot_report(scores[:, 0].argmax(1), labels, torch.tensor(counts)).items():
        assert found[f'{group}-shot'] == pytest.approx(value)
    assert {'many-shot', 'medium-shot', 'few-shot', 'top-1', 'top-5'} == set(found)


def test_scores_that_are_no_numbers_and_no_images_at_all_are_one_sentence():
    with pytest.raises(UserError, match='1 of 2 images have scores that are NaN'):
        fed(HeadAccuracy(), torch.tensor([[[0.0, torch.nan]], [[0.0, 1.0]]]), torch.tensor([0, 1]), 2)
    with pytest.raises(UserError, match='the test set is empty'):
        HeadAccuracy().compute_metrics([])
