"""Base class of the protocols that score the features of a frozen backbone, such as k-NN.

With a cache, protocols that preprocess the images in the same way share the extracted features.
"""

import dataclasses
import tempfile
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from mmengine import Config
from mmengine.dist import barrier
from mmengine.logging import print_log
from torch.utils.data import Dataset

from mmairl.checkpoints.read import Backbone
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.feature_store import stored
from mmairl.evaluation.features import Features, extraction, on_main_process
from mmairl.evaluation.identity import features_key
from mmairl.evaluation.metrics import confusion, packed
from mmairl.evaluation.protocol import Outcome, Protocol, Scores, Sets
from mmairl.evaluation.sets import left_out, own_groups


@dataclass(frozen=True)
class Split:
    """The features that a protocol scores.

    Attributes:
        train: Features of the training images.
        test: Features of the test images.
        val: Features of the validation images. None if the config has none, or if the protocol does not choose
            hyperparameters on them.
        metric: Name of the data set's metric, an argument of `metrics.scores_of`.
        cfg: The config of the evaluation.
    """

    train: Features
    test: Features
    val: Features | None
    metric: str
    cfg: Config


@dataclass(frozen=True)
class FeatureProtocol(Protocol):
    """Base class of protocols on frozen features. Subclasses implement `score`.

    Class attributes:
        everywhere: Whether all processes call `score`. If False, only the main process calls it, and the others wait.

    """

    everywhere: ClassVar[bool] = False

    @abstractmethod
    def score(self, split: Split) -> tuple[Scores, dict]:
        """Return the scores, with the main score first, and details as plain values.

        A protocol that predicts one class per test image returns a tensor of these classes as `details['predicted']`. From
        them, mmairl computes the confusion matrix, and how much the score varies with the choice of test images. A
        protocol without predicted classes may instead return
        which test images it got right, encoded by `metrics.packed`, as `details['right']`.
        """

    def run(
        self, cfg: Config, subject: Backbone | str, sets: Sets, identity: dict[str, Any]
    ) -> Outcome:
        features = self._features(cfg, subject, sets, identity)
        train, test = features['train'], features['test']
        datasets = {name: dataset for name, (_, dataset) in sets.items()}
        groups = own_groups(cfg, datasets['train'])
        if groups is not None:
            groups = np.delete(groups, list(train.unreadable))
            train = dataclasses.replace(train, groups=groups)
        metric = getattr(datasets['test'], 'metric', 'top-1')
        split = Split(train, test, features.get('val'), metric, cfg)
        if self.everywhere:
            scores, details = self.score(split)
        else:
            scores, details = on_main_process(lambda: self.score(split))
        predicted = details.pop('predicted', None)
        if predicted is not None:
            details['right'] = packed(predicted == test.y)
            details['confusion'] = confusion(predicted, test.y, datasets['test'].classes)
        sizes = dict(
            train_images=len(train.x), test_images=len(test.x), dimensions=train.x.shape[1]
        )
        counts: dict[str, int] = {}
        for name, part in features.items():
            counts |= left_out(name, datasets[name], part.y, len(part.unreadable))
            if part.unreadable:
                sizes[f'unreadable_{name}_images'] = _names(datasets[name], part.unreadable)
        barrier()
        return scores, {**sizes, **details}, counts

    def _features(
        self, cfg: Config, subject: Backbone | str, sets: Sets, identity: dict[str, Any]
    ) -> dict[str, Features]:
        """Return the features of each data set. The processes share the extraction of features that are not stored yet."""
        backbone = None
        if subject != 'pixels':
            backbone = load_backbone(cfg, None if subject == 'random' else subject)
        how = extraction(cfg, self.device, self.workers)
        features = {}
        with ExitStack() as stack:
            root = self.cache
            if root is None:
                # Even without a cache, the processes exchange features through files.
                root = on_main_process(lambda: stack.enter_context(tempfile.TemporaryDirectory()))
            for name, (described, dataset) in sets.items():
                path = Path(root) / f'{features_key(identity, name, described)}.npy'
                if self.remeasure:
                    on_main_process(partial(path.unlink, missing_ok=True))
                features[name] = stored(path, backbone, dataset, how)
        return features


def _names(dataset: Dataset, positions: Sequence[int]) -> list[str]:
    """Return the names of unreadable images, and log the first five."""
    name = getattr(dataset, 'name', 'image {}'.format)
    names = [name(position) for position in positions]
    print_log(
        f'{len(names)} images cannot be read and are left out: {", ".join(names[:5])}',
        logger='current',
    )
    return names
