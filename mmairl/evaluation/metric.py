"""How right a classifier's heads are, image by image, so that processes and padded last batches add nothing."""

from collections.abc import Sequence

import torch
from mmengine.evaluator import BaseMetric
from torch import Tensor

from mmairl.errors import UserError
from mmairl.evaluation.metrics import mean_ap, recalls, shot_report
from mmairl.registry import METRICS


@METRICS.register_module()
class HeadAccuracy(BaseMetric):
    """Scores in percent: top-1 and top-5, their mean per class, or mean average precision, as the data set is scored.

    `train_counts`, the training images of each class, adds the many-, medium- and few-shot classes' accuracies. With
    several heads each score's name ends in @ and the head's number.
    """

    default_prefix = ''

    def __init__(self, metric: str = 'top-1', train_counts: Sequence[int] | None = None) -> None:
        super().__init__()
        self.metric, self.train_counts = metric, train_counts

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        readable = data_batch.get('data_samples', {}).get('readable')
        for outputs in data_samples:
            scores, labels = outputs['scores'], outputs['label'].cpu()
            if not scores.isfinite().all():
                raise UserError('the classifier has NaN or infinite scores: its training has diverged; lower the rate')
            if labels.ndim == 1:  # the five best suffice, and are a two hundredth of ImageNet's scores
                scores = scores.topk(min(5, scores.shape[2]), dim=2).indices
            counts = torch.ones(len(labels), dtype=torch.bool) if readable is None else readable.bool().cpu()
            self.results += list(zip(scores.cpu(), labels, counts))

    def compute_metrics(self, results: list[tuple[Tensor, Tensor, Tensor]]) -> dict[str, float]:
        if not results:
            raise UserError('no images to evaluate: the test set is empty; check cfg.evaluation.test')
        found, labels, readable = (torch.stack(column) for column in zip(*results))
        scored, found, labels = {}, found[readable], labels[readable]
        for head in range(found.shape[1]):
            suffix = f'@{head}' if found.shape[1] > 1 else ''
            scored |= {f'{name}{suffix}': value for name, value in self.of_head(found[:, head], labels).items()}
        if not readable.all():
            scored['unreadable images'] = float((~readable).sum())
        return scored

    def of_head(self, found: Tensor, labels: Tensor) -> dict[str, float]:
        """One head's scores: from class scores where an image has several labels, else from its five best classes."""
        if labels.ndim == 2:
            return {'mAP (11 points)': 100 * mean_ap(found, labels, 11), 'mAP': 100 * mean_ap(found, labels)}
        if self.metric == 'mean per class':
            return {self.metric: 100 * torch.stack(list(recalls(found[:, 0], labels).values())).mean().item()}
        right = found == labels[:, None]
        scores = {'top-1': 100 * right[:, 0].double().mean().item()}
        if found.shape[1] == 5:
            scores['top-5'] = 100 * right.any(dim=1).double().mean().item()
        if self.train_counts is not None:
            shots = shot_report(found[:, 0], labels, torch.as_tensor(self.train_counts))
            scores |= {f'{group}-shot': value for group, value in shots.items()}
        return scores
