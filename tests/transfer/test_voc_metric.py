"""AP on VOC equals a plain implementation of VOC2007's protocol, and known values."""

import numpy as np
import pytest
import torch
from transfer.small_runs import overlap

from mmairl.transfer.voc_metric import VOCDetectionMetric

CLASSES = ('bus', 'car', 'boat')


def sample(truth: list, detections: list) -> dict:
    """Return a sample of mmdet.

    An entry of `truth` is (label, box, difficult); an entry of `detections` is (label, box, score).
    """

    def instances(rows: list) -> dict[str, torch.Tensor]:
        boxes = torch.tensor([row[1] for row in rows], dtype=torch.float32).reshape(-1, 4)
        labels, scores = (torch.tensor([row[column] for row in rows]) for column in (0, 2))
        return dict(bboxes=boxes, labels=labels, scores=scores)

    split = ([row for row in truth if row[2] == difficult] for difficult in (False, True))
    return dict(zip(('gt_instances', 'ignored_instances', 'pred_instances'), map(instances, (*split, detections))))


def measured(samples: list[dict], **options) -> dict[str, float]:
    metric = VOCDetectionMetric(**options)
    metric.dataset_meta = dict(classes=CLASSES, dataset_type='VOC2007')
    metric.process({}, samples)
    return metric.evaluate(len(samples))


def plain_ap(images: list[tuple[list, list]], label: int, threshold: float) -> float | None:
    """Return the AP, computed by a plain loop.

    In the order of decreasing scores, each detection claims the object with which it overlaps most. A second claim of
    an object is a false positive.
    """
    count = sum(row[0] == label and not row[2] for truth, _ in images for row in truth)
    if not count:
        return None
    rows = [(row[2], at, row[1]) for at, (_, detections) in enumerate(images) for row in detections if row[0] == label]
    ranked = sorted(rows, key=lambda row: -row[0])
    claimed, right, wrong, curve = set(), 0, 0, []
    for _, at, box in ranked:
        truth = [row for row in images[at][0] if row[0] == label]
        best = max(range(len(truth)), key=lambda i: overlap(box, truth[i][1]), default=None)
        if best is not None and overlap(box, truth[best][1]) >= threshold:
            if truth[best][2]:
                continue
            right += (at, best) not in claimed
            wrong += (at, best) in claimed
            claimed.add((at, best))
        else:
            wrong += 1
        curve.append((right / count, right / (right + wrong)))
    # The protocol uses level * 0.1 instead of level / 10. Therefore, a recall of 3/10 does not
    # reach level 3, which is 0.30000000000000004.
    return sum(max((p for r, p in curve if r >= level * 0.1), default=0) for level in range(11)) / 11


def random_images(seed: int, count: int, digits: int) -> list[tuple[list, list]]:
    """Return images with three objects each. With few digits, many scores are equal."""
    generator = np.random.default_rng(seed)

    def box() -> np.ndarray:
        corner, extent = generator.integers(0, 60, 2), generator.integers(10, 40, 2)
        return np.concatenate([corner, corner + extent]).astype(float)

    images = []
    for _ in range(count):
        truth = [(int(generator.integers(3)), tuple(box()), bool(generator.random() < 0.2)) for _ in range(3)]
        near = [(label, tuple(np.array(at) + generator.integers(-4, 5, 4))) for label, at, _ in truth]
        spurious = [(int(generator.integers(3)), tuple(box())) for _ in range(2)]
        scores = generator.random(6).round(digits).astype(np.float32).tolist()
        detections = [(*row, score) for row, score in zip(near + near[:1] + spurious, scores)]
        images.append((truth, detections))
    return images


@pytest.mark.parametrize('seed,digits', [(0, 9), (1, 9), (0, 1)], ids=str)
def test_ap_equals_a_plain_implementation(seed: int, digits: int) -> None:
    images = random_images(seed, 40, digits)
    results = measured([sample(*image) for image in images])
    at = {
        threshold: np.mean([ap for label in range(3) if (ap := plain_ap(images, label, threshold / 100)) is not None])
        for threshold in range(50, 100, 5)
    }
    assert results['pascal_voc/AP50'] == pytest.approx(at[50], abs=1e-6)
    assert results['pascal_voc/AP75'] == pytest.approx(at[75], abs=1e-6)
    assert results['pascal_voc/AP'] == pytest.approx(np.mean(list(at.values())), abs=1e-6)
    assert 0.1 < results['pascal_voc/AP'] < results['pascal_voc/AP50'] < 1


def test_known_detections_have_their_ap() -> None:
    """An IoU of 0.8 reaches seven of the ten IoU thresholds.

    If one of two objects is found, the precision is 1 at six of the eleven recall levels. Without any detection, the AP
    is 0.
    """
    box, other = (0, 0, 9, 9), (20, 20, 39, 39)
    results = measured([sample([(0, box, False)], [(0, (0, 0, 9, 7), 0.9)])])
    assert results == pytest.approx({'pascal_voc/AP': 0.7, 'pascal_voc/AP50': 1.0, 'pascal_voc/AP75': 1.0})
    half = measured([sample([(0, box, False), (0, other, False)], [(0, box, 0.9)])])
    assert half['pascal_voc/AP'] == pytest.approx(6 / 11)
    assert measured([sample([(0, box, False)], [])])['pascal_voc/AP'] == 0


def test_detectron2_rounding_changes_the_ap() -> None:
    """Rounding makes two scores equal, which changes the order of these detections, and it raises an overlap to the IoU
    threshold.
    """
    box = (0, 0, 9, 9)
    truth = [(0, box, False)]
    better_second = [(0, (40, 40, 49, 49), 0.9001), (0, box, 0.90049)]
    assert measured([sample(truth, better_second)])['pascal_voc/AP50'] == 1
    assert measured([sample(truth, better_second)], detectron2_rounding=True)['pascal_voc/AP50'] == 0.5
    # The overlap is 50.4 of 100 pixels, or 50 when rounded.
    just_half = [(0, (0, 0, 9, 4.04), 0.9)]
    # The overlap is 49.6 of 100 pixels, or 50 when rounded.
    shifted = [(0, (0, 0, 9, 3.96), 0.9)]
    for detections, plain, rounded in ((just_half, 1, 1), (shifted, 0, 1)):
        assert measured([sample(truth, detections)])['pascal_voc/AP50'] == plain
        assert measured([sample(truth, detections)], detectron2_rounding=True)['pascal_voc/AP50'] == rounded
