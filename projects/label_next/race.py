"""A sequential test that finds the classifier that recognizes the most images of a pool."""

from itertools import combinations, permutations

import numpy as np

# The test bets each of these fractions of its wealth and averages the results, so that no fraction has to be tuned.
BETS = np.linspace(0.1, 0.95, 8)


class Race:
    """Eliminate classifiers, one label at a time, until one is left or the rest agree on all images without a label.

    Images on which all remaining classifiers agree cannot show a difference and are never drawn. All other images are drawn
    without replacement, with a probability proportional to the number of pairs of classifiers that disagree on the image.

    For each ordered pair, the test bets that the first classifier is better. Each label of an image on which the pair
    disagrees multiplies the wealth of this bet. To keep the bet fair, labels are weighted by the inverse of the probability
    of their image, and images with a label are subtracted from the pool. If the second classifier is at least as good as the
    first, the wealth therefore does not grow on average. A classifier is eliminated once the average wealth of the bets
    against it reaches ``classifiers / error``, or once no further labels can reverse the lead of another classifier. By
    Ville's inequality, the probability that any best classifier is ever eliminated is at most `error`, whenever labeling
    stops.

    Args:
        predictions: The predicted classes, an array (images, classifiers).
        error: The probability of eliminating a best classifier.
        seed: The seed of the draws.

    Example:
        >>> race = Race(np.array([[0, 1], [2, 2]]))
        >>> race.next_image()
        0
        >>> race.add(0, label=1)
        >>> race.remaining
        [1]
    """

    def __init__(self, predictions: np.ndarray, error: float = 0.05, seed: int = 0) -> None:
        self.predictions = predictions
        self.error = error
        self.seed = seed
        images, self.count = predictions.shape
        self.remaining = list(range(self.count))
        self.is_labeled = np.zeros(images, bool)
        # For each pair: how many images only its first classifier recognizes, minus how many only its second recognizes.
        self.lead = np.zeros((self.count, self.count))
        self.log_wealth = np.zeros((self.count, self.count, len(BETS)))

    def weights(self) -> np.ndarray:
        """Return for each image the number of pairs of classifiers that disagree on it; 0 if it has a label."""
        pairs = combinations(self.remaining, 2)
        counts = sum(self.disagree(*pair).astype(int) for pair in pairs)
        return np.where(self.is_labeled, 0, counts)

    def disagree(self, one: int, other: int) -> np.ndarray:
        return self.predictions[:, one] != self.predictions[:, other]

    def next_image(self) -> int | None:
        """Return the index of the image to label next, or None if the race is over. Repeated calls return the same image."""
        if len(self.remaining) == 1:
            return None
        weights = self.weights()
        if not weights.any():  # the remaining classifiers agree on all images without a label
            return None
        random = np.random.default_rng([self.seed, self.is_labeled.sum()])
        return int(random.choice(len(weights), p=weights / weights.sum()))

    def add(self, image: int, label: object) -> None:
        """Use the label of the drawn image, and eliminate the classifiers that are shown not to be best."""
        weights = self.weights()
        is_right = (self.predictions[image] == label).astype(int)
        self.is_labeled[image] = True
        for pair in permutations(self.remaining, 2):
            pair_weights = weights * self.disagree(*pair)
            if pair_weights[image]:
                one, other = pair
                self._bet(pair, is_right[one] - is_right[other], pair_weights, pair_weights[image])
        for other in list(self.remaining):
            if len(self.remaining) > 1 and self._is_beaten(other):
                self.remaining.remove(other)

    def _bet(self, pair: tuple[int, int], gain: int, weights: np.ndarray, weight: int) -> None:
        """Update the wealth of a pair's bets. The outcome is scaled so that no bet can lose all of its wealth."""
        smallest = weights[weights > 0].min()
        lead = self.lead[pair] * smallest / weights.sum()
        outcome = gain * smallest / weight + lead
        worst = 1 + max(0, -lead)
        self.log_wealth[pair] += np.log1p(BETS * outcome / worst)
        self.lead[pair] += gain

    def _is_beaten(self, other: int) -> bool:
        wealth = np.exp(self.log_wealth[:, other]).mean(axis=1)
        against = np.delete(wealth, other).mean()
        if against >= self.count / self.error:
            return True
        for rival in self.remaining:
            open_images = self.disagree(rival, other) & ~self.is_labeled
            if (
                self.lead[rival, other] > open_images.sum()
            ):  # no further labels can reverse the lead
                return True
        return False
