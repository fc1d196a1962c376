"""Features laid out in two dimensions for the eye."""

import numpy as np
import torch.nn.functional as F
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from torch import Tensor

from mmairl.errors import UserError


def plane(x: Tensor, seed: int = 0, method: str = 'tsne') -> np.ndarray:
    """t-SNE or UMAP of unit features, (N, 2), from their 30 principal components, which changes little and saves time."""
    x = F.normalize(x).numpy()
    x = PCA(min(30, *x.shape), random_state=seed).fit_transform(x)
    if method == 'umap':
        return _umap(x, seed)
    perplexity = min(30, (len(x) - 1) / 3)
    return TSNE(perplexity=perplexity, init='pca', random_state=seed, max_iter=500, n_jobs=-1).fit_transform(x)


def _umap(x: np.ndarray, seed: int) -> np.ndarray:
    try:
        from umap import UMAP
    except ImportError as error:
        raise UserError('UMAP is not installed; pip install umap-learn, or take --map tsne') from error
    return UMAP(n_neighbors=min(15, len(x) - 1), random_state=seed, n_jobs=1).fit_transform(x)
