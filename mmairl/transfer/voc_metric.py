"""AP, AP50 and AP75 on VOC, the three numbers of the paper's tables."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
from mmdet.evaluation import VOCMetric, eval_map
from mmdet.evaluation.functional import mean_ap
from mmengine.logging import MMLogger

from mmairl.registry import METRICS

THRESHOLDS = np.arange(50, 100, 5)


@METRICS.register_module()
class VOCDetectionMetric(VOCMetric):
    """VOC2007's own AP (11 points, 'difficult' boxes ignored) at each IoU of 0.5, 0.55, ..., 0.95, and their mean.

    The published tables come from detectron2's VOC evaluator, which takes the thresholds from COCO and the precision
    at each from VOC2007's protocol; pycocotools' 101 points give another number for the same detections. mmdet's
    `eval_map` is that protocol for one threshold, so it is called once for each. Values are fractions, as mmdet's are.
    """

    def __init__(self, collect_device: str = 'cpu', prefix: str | None = None) -> None:
        super().__init__(eval_mode='11points', collect_device=collect_device, prefix=prefix)

    def compute_metrics(self, results: list[tuple[dict, list]]) -> dict[str, float]:
        truths, detections = zip(*results)
        with _without_processes():
            ap = {
                threshold: eval_map(
                    detections,
                    truths,
                    iou_thr=threshold / 100,
                    logger='silent',
                    use_legacy_coordinate=True,  # VOC's corners are pixels, both inside the box
                    eval_mode=self.eval_mode,
                )[0]
                for threshold in THRESHOLDS
            }
        found = dict(AP=float(np.mean(list(ap.values()))), AP50=ap[50], AP75=ap[75])
        MMLogger.get_current_instance().info(', '.join(f'{name} {100 * value:.2f}' for name, value in found.items()))
        return found


class _Here:
    """What `eval_map` asks of a pool, done in this process."""

    def __init__(self, processes: int) -> None: ...

    def starmap(self, function: Callable, arguments: Iterable[tuple]) -> list:
        return list(itertools.starmap(function, arguments))

    def close(self) -> None: ...


@contextmanager
def _without_processes() -> Iterator[None]:
    """`eval_map` forks a pool at each call and does not wait for its end, which for some never comes: a run would gather copies
    of itself, four for a threshold. VOC's test set takes as long in one process (4.4 s, 4.8 with four): all that the four do
    is copied to and fro."""
    pool, mean_ap.Pool = mean_ap.Pool, _Here
    try:
        yield
    finally:
        mean_ap.Pool = pool
