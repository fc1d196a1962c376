"""Score a trained classifier on further test sets (robustness sets), such as ImageNet-V2, -A, -R and -Sketch."""

from collections.abc import Sequence

from mmengine import Config
from mmengine.runner import Runner, TestLoop
from torch.utils.data import Dataset

from mmairl.errors import UserError
from mmairl.evaluation.metrics import HeadAccuracy
from mmairl.evaluation.sets import require_labeled_images
from mmairl.registry import DATASETS


def robustness_parts(cfg: Config, classes: Sequence[str], loader: dict) -> dict[str, dict]:
    """Return a dictionary from the name of each data set in `evaluation.robustness` to its loader and evaluator."""
    parts = {}
    for name, described in cfg.evaluation.get('robustness', {}).items():
        dataset = DATASETS.build(described)
        require_labeled_images(dataset)
        evaluator = dict(
            type=HeadAccuracy.__name__,
            metric=dataset.metric,
            columns=columns_of(name, dataset, classes),
        )
        images = dict(loader, dataset=dict(type='Readable', dataset=described))
        parts[name] = dict(loader=images, evaluator=evaluator)
    return parts


def columns_of(name: str, dataset: Dataset, classes: Sequence[str]) -> list[int] | None:
    """Return, for each class of a data set, the index of the classifier's output for this class.

    Return None if the data set has the same classes as the classifier. Outputs for classes that the data set lacks are
    ignored, as is usual for ImageNet-A and -R, which have 200 of ImageNet's classes. Class names that are whole numbers, as
    in ImageNet-V2, are used as indices.
    """
    own = list(map(str, dataset.classes))
    if own == list(map(str, classes)):
        return None
    index = {str(label): number for number, label in enumerate(classes)}
    if not set(own) <= index.keys() and all(label.isdecimal() for label in own):
        index = {label: int(label) for label in own}
    unknown = [label for label in own if index.get(label, len(classes)) >= len(classes)]
    if unknown:
        raise UserError(
            f'evaluation.robustness.{name}: {len(unknown)} classes are not among the {len(classes)} classes of the classifier '
            f"('{unknown[0]}'); name folders by class, such as {classes[0]}, or by the index of the class",
            code='other-classes',
        )
    return [index[label] for label in own]


def robustness_scores(runner: Runner, parts: dict[str, dict]) -> dict[str, float]:
    """Return the main score of a trained classifier on each robustness set."""
    scores = {}
    for name, part in parts.items():
        loop = TestLoop(runner, part['loader'], part['evaluator'])
        score, value = next(iter(loop.run().items()))
        scores[f'{score.removeprefix("/")} on {name}'] = value
    return scores
