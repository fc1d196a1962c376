"""The runner's metric is the metric of the data set, for each head, over images and not over batches."""

import pytest
import torch

from mmairl.evaluation.metric import HeadAccuracy
from mmairl.evaluation.metrics import scores_of, shot_report


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
