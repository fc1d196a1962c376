"""The metrics AP, AP50 and AP75 for detection on VOC, as in the tables of Huang et al. (2022)."""

import numpy as np
from mmdet.evaluation import VOCMetric
from mmengine.logging import MMLogger

from mmairl.registry import METRICS

THRESHOLDS = np.arange(50, 100, 5) / 100


@METRICS.register_module()
class VOCDetectionMetric(VOCMetric):
    """Computes VOC2007's average precision: AP50, AP75, and AP as the mean over the IoU thresholds 0.5, 0.55, ..., 0.95.

    VOC2007's average precision has 11 points and ignores boxes that are marked as difficult. The published numbers come from
    detectron2's VOC evaluator, which combines this definition with COCO's IoU thresholds. pycocotools is not used, because
    its 101-point AP yields other numbers for the same detections. mmdet's `eval_map` is not used, because it has one
    threshold per call, sorts detections of equal confidence in arbitrary order and starts processes that may not end. The
    metrics are fractions, as in mmdet.

    Args:
        collect_device: Device on which the results of all processes are gathered. Default: 'cpu'.
        prefix: Prefix of the names of the metrics. Default: 'pascal_voc'.
        detectron2_rounding: Whether to round the confidence of each detection to 0.001 and its box to 0.1 pixels, as
            detectron2 does. Rounding changes AP by up to 0.5 points. Default: False.
    """

    def __init__(
        self,
        collect_device: str = 'cpu',
        prefix: str | None = None,
        detectron2_rounding: bool = False,
    ) -> None:
        super().__init__(eval_mode='11points', collect_device=collect_device, prefix=prefix)
        self.detectron2_rounding = detectron2_rounding

    def compute_metrics(self, results: list[tuple[dict, list]]) -> dict[str, float]:
        if self.detectron2_rounding:
            results = [
                (truth, [_rounded(rows) for rows in detections]) for truth, detections in results
            ]
        classes = [
            detection_ap(results, label) for label in range(len(self.dataset_meta['classes']))
        ]
        present = [of_class for of_class in classes if of_class is not None]
        ap = np.mean(present or [np.zeros(len(THRESHOLDS))], axis=0)
        scores = dict(AP=float(ap.mean()), AP50=float(ap[0]), AP75=float(ap[5]))
        line = ', '.join(f'{name} {100 * value:.2f}' for name, value in scores.items())
        MMLogger.get_current_instance().info(line)
        return scores


def _rounded(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    return np.concatenate([rows[:, :4].round(1), rows[:, 4:].round(3)], axis=1)


def detection_ap(results: list[tuple[dict, list]], label: int) -> np.ndarray | None:
    """Return the AP of a class at each IoU threshold, or None if all objects of this class are difficult or there are none."""
    objects = 0
    scores = [np.zeros(0)]
    outcomes = [np.zeros((0, len(THRESHOLDS)))]
    for truth, detections in results:
        boxes = truth['bboxes'][truth['labels'] == label]
        difficult = truth['bboxes_ignore'][truth['labels_ignore'] == label]
        rows = detections[label][np.argsort(-detections[label][:, 4], kind='stable')].astype(
            np.float64
        )
        objects += len(boxes)
        scores.append(rows[:, 4])
        outcomes.append(match(rows[:, :4], boxes, difficult))
    if not objects:
        return None
    outcome = np.concatenate(outcomes)[np.argsort(-np.concatenate(scores), kind='stable')]
    right = np.cumsum(outcome == 1, axis=0)
    wrong = np.cumsum(outcome == -1, axis=0)
    recall = right / objects
    precision = right / np.maximum(right + wrong, 1)
    levels = [
        np.where(recall >= level * 0.1, precision, 0).max(axis=0, initial=0) for level in range(11)
    ]
    return np.mean(levels, axis=0)


def match(detections: np.ndarray, boxes: np.ndarray, difficult: np.ndarray) -> np.ndarray:
    """Match the detections in an image to the boxes of true objects.

    Return the outcome of each detection at each IoU threshold. Detections must be in descending order of confidence. The
    outcome is 1 if the detection is the first match of a box, 0 if it matches a difficult box and is therefore ignored, and -1
    otherwise.
    """
    outcome = np.full((len(detections), len(THRESHOLDS)), -1)
    truth = np.concatenate([boxes.reshape(-1, 4), difficult.reshape(-1, 4)]).astype(np.float64)
    if not len(detections) or not len(truth):
        return outcome
    overlaps = overlap(detections, truth)
    claimed = np.zeros((len(truth), len(THRESHOLDS)), bool)
    for row, of_detection in enumerate(overlaps):
        box = of_detection.argmax()
        enough = of_detection[box] >= THRESHOLDS
        if box < len(boxes):
            outcome[row, enough & ~claimed[box]] = 1
            claimed[box] |= enough
        else:
            outcome[row, enough] = 0
    return outcome


def overlap(detections: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the IoU of each detection with each true box. As in VOC, the width of a box is x2 - x1 + 1."""
    first = np.maximum(detections[:, None, :2], truth[:, :2])
    last = np.minimum(detections[:, None, 2:], truth[:, 2:])
    intersection = np.clip(last - first + 1, 0, None).prod(axis=2)
    union = _area(detections)[:, None] + _area(truth) - intersection
    return intersection / union


def _area(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2:] - boxes[:, :2] + 1).prod(axis=1)
