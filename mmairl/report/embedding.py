"""Features laid out in two dimensions for the eye."""

import numpy as np
import torch.nn.functional as F
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from torch import Tensor


def plane(x: Tensor, seed: int = 0) -> np.ndarray:
    """t-SNE of unit features, (N, 2), from their 30 principal components, which changes little and saves time."""
    x = F.normalize(x).numpy()
    x = PCA(min(30, *x.shape), random_state=seed).fit_transform(x)
    perplexity = min(30, (len(x) - 1) / 3)
    return TSNE(perplexity=perplexity, init='pca', random_state=seed, max_iter=500, n_jobs=-1).fit_transform(x)
