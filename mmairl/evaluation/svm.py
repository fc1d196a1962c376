"""Train one linear SVM per class on frozen features (Goyal et al. 2019, VOC07).

The score is scikit-learn's average precision. Goyal's code differs in two points: it interpolates
the precision, and an image that is 'difficult' for a class is a negative example in training.
"""

import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mmairl.errors import UserError
from mmairl.evaluation.feature_protocol import FeatureProtocol, Split
from mmairl.evaluation.features import Features, show_progress
from mmairl.evaluation.metrics import ap11, mean_ap, scores_of
from mmairl.evaluation.protocol import Scores
from mmairl.registry import PROTOCOLS

# The published grid has the powers of ten from 1e-7 to 100 and the powers of two from 2^-19 to 2^-4.
# If several costs are equally good, the smallest one is chosen.
TENS = [10.0**power for power in range(-7, 3)]
TWOS = [2.0**power for power in range(-19, -3)]
COSTS = sorted(TENS + TWOS)
FOLDS = 3
ITERATIONS = 2000


@PROTOCOLS.register_module('svm')
@dataclass(frozen=True)
class LinearSVM(FeatureProtocol):
    """Train one linear SVM for each class against all other classes (the VOC07 protocol).

    The cost of each SVM is chosen by 3-fold cross-validation on the training images. Therefore, each
    class needs at least three images. The scores are mAP, 11-point mAP and, if each image has one
    class, top-1 accuracy.

    Args:
        seed: Seed for the folds. Default: 0.
    """

    seed: int = 0

    metric: ClassVar = 'mAP'

    def score(self, split: Split) -> tuple[Scores, dict]:
        decisions, costs = self.decisions(split.train, split.test)
        y = split.test.y
        by_class = labels_by_class(y, decisions.shape[1])
        scores = {
            'SVM, mAP': 100 * mean_ap(decisions, by_class),
            'SVM, mAP (11 points)': 100 * mean_ap(decisions, by_class, ap11),
        }
        if y.ndim == 1:
            scores['SVM, top-1'] = scores_of('top-1', decisions, y)['top-1']
        return scores, dict(cost=costs)

    def decisions(self, train: Features, test: Features) -> tuple[Tensor, dict[int, float]]:
        """Return the decision values of the test images, (images, classes), and the costs of the
        classes.

        The cost of each class is chosen by cross-validation, and the SVM is fitted to all training
        images. Positive images have weight 2, and the dual problem is solved if there are fewer images
        than features, as in Goyal's code. Fits with the largest costs stop before they converge there,
        too.

        Raises:
            UserError: If a class has too few training images for cross-validation.
        """
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold, StratifiedKFold
        from sklearn.svm import LinearSVC

        x, x_test = (F.normalize(part.x.double()).numpy() for part in (train, test))
        kind = StratifiedKFold if train.groups is None else StratifiedGroupKFold
        folds = kind(FOLDS, shuffle=True, random_state=self.seed)
        model = LinearSVC(
            class_weight={True: 2, False: 1},
            max_iter=ITERATIONS,
            dual='auto',
            random_state=self.seed,
        )
        search = GridSearchCV(
            model,
            dict(C=COSTS),
            scoring='average_precision',
            cv=folds,
            n_jobs=max(1, self.workers),
        )
        y = labels_by_class(train.y, int(max(train.y.max(), test.y.max())) + 1).numpy()
        decisions = []
        chosen = {}
        for label, column in enumerate(show_progress(y.T, 'SVM')):
            counted = column != -1
            positive = column[counted] == 1
            if min(positive.sum(), (~positive).sum()) < FOLDS:
                raise UserError(
                    f'svm: each of {FOLDS} folds requires an image of class {label} and an image of '
                    'another class; add images or leave the class out',
                    code='few-images',
                )
            groups = None if train.groups is None else train.groups[counted]
            with warnings.catch_warnings():
                warnings.simplefilter('ignore', ConvergenceWarning)
                search.fit(x[counted], positive, groups=groups)
            decisions.append(search.decision_function(x_test))
            chosen[label] = search.best_params_['C']
        return torch.tensor(np.stack(decisions, axis=1)), chosen


def labels_by_class(y: Tensor, classes: int) -> Tensor:
    """Return labels as a matrix (images, classes): 1 for yes, 0 for no, -1 for 'does not count'."""
    return y if y.ndim == 2 else F.one_hot(y, classes)
