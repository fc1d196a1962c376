"""Base class of the protocols that score the features of a frozen backbone, such as k-NN.

With a cache, protocols that preprocess the images in the same way share the extracted features.
"""

import tempfile
from abc import abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from mmengine import Config
from mmengine.dist import barrier
from mmengine.logging import print_log

from mmairl.checkpoints.read import Backbone
from mmairl.data.splits import HELD_OUT, groups_of, image_names, split_by_class
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.features import Features, extraction, on_main_process, stored
from mmairl.evaluation.identity import features_key
from mmairl.evaluation.metrics import confusion
from mmairl.evaluation.protocol import Outcome, Protocol, Scores, Sets
from mmairl.evaluation.sets import PARTS


@dataclass(frozen=True)
class Split:
    """The features that a protocol scores.

    Attributes:
        train: Features of the training images.
        test: Features of the test images.
        val: Features of the images on which hyperparameters are chosen: the validation images or, if
            there are none, a part of the training images. None if the protocol chooses nothing.
        metric: Name of the data set's metric, an argument of `metrics.scores_of`.
    """

    train: Features
    test: Features
    val: Features | None
    metric: str


@dataclass(frozen=True)
class FeatureProtocol(Protocol):
    """Base class of protocols on frozen features. Subclasses implement `score`.

    The processes of a run share the extraction of features. The main process scores them.
    """

    @abstractmethod
    def score(self, split: Split) -> tuple[Scores, dict]:
        """Return the scores, with the main score first, and details as plain values.

        A protocol that predicts one class per test image returns a tensor of these classes as
        `details['predicted']`. mmairl computes from it the confusion matrix, and a text with 1 for
        each right image and 0 for each wrong one.
        """

    def run(
        self, cfg: Config, subject: Backbone | str, sets: Sets, identity: dict[str, Any]
    ) -> Outcome:
        features = self._features(cfg, subject, sets, identity)
        split = self._split(cfg, features, sets)
        scores, details = on_main_process(lambda: self.score(split))
        predicted = details.pop('predicted', None)
        test = features['test']
        if predicted is not None:
            right = (predicted == test.y).int().tolist()
            details['right'] = ''.join(map(str, right))  # in JSON, a list takes a line per image
            details['confusion'] = confusion(predicted, test.y, sets['test'][1].classes)
        details['dimensions'] = test.x.shape[1]
        left_out = {}
        for name, part in features.items():
            details[f'{name}_images'] = len(part.x)
            if lost := part.unreadable:
                left_out[f'unreadable {PARTS[name]} images'] = len(lost)
                first = sets[name][1].name(lost[0])
                text = f'unreadable images: {len(lost)}, such as {first}'
                print_log(text, logger='current')
        barrier()
        return scores, details, left_out

    def _split(self, cfg: Config, features: dict[str, Features], sets: Sets) -> Split:
        train = features['train']
        if (groups := cfg.evaluation.get('groups')) is not None:
            groups = groups_of(image_names(sets['train'][1]), groups)
            train = replace(train, groups=np.delete(groups, list(train.unreadable)))
        val = features.get('val')
        if self.validation == 'choose' and val is None:
            fraction = cfg.evaluation.get('held_out', HELD_OUT)
            fit, held = split_by_class(train.y, 0, fraction, train.groups)
            val = Features(train.x[held], train.y[held])
            train = Features(train.x[fit], train.y[fit])
        return Split(train, features['test'], val, sets['test'][1].metric)

    def _features(
        self, cfg: Config, subject: Backbone | str, sets: Sets, identity: dict[str, Any]
    ) -> dict[str, Features]:
        """Return the features of each data set. The processes share the extraction."""
        backbone = None
        if subject != 'pixels':
            backbone = load_backbone(cfg, None if subject == 'random' else subject)
        how = extraction(cfg, self.device, self.workers)
        features = {}
        # Even without a cache, the processes exchange features through files.
        with tempfile.TemporaryDirectory() as folder:
            root = self.cache or on_main_process(lambda: folder)
            for name, (described, dataset) in sets.items():
                path = Path(root, f'{features_key(identity, name, described)}.npy')
                features[name] = stored(path, backbone, dataset, how)
            barrier()  # The main process removes the folder.
        return features
