"""The least-squares line with the confidence band of its mean."""

import numpy as np
from scipy.stats import t as student_t


def fitted_line(x: np.ndarray, y: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return places along x, the height of the line there, and half the width of its band; it takes three points or more."""
    slope, height = np.polyfit(x, y, 1)
    along = np.linspace(x.min(), x.max(), 50)
    variance = np.square(y - slope * x - height).sum() / (len(x) - 2)
    error = np.sqrt(variance * (1 / len(x) + np.square(along - x.mean()) / np.square(x - x.mean()).sum()))
    return along, slope * along + height, student_t.ppf((1 + level) / 2, len(x) - 2) * error
