"""`info_nce` computes logits in chunks of negatives, but its loss and gradients equal those of one concatenated matrix of
logits.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mmairl.models.heads import info_nce as module
from mmairl.models.heads.info_nce import info_nce


def unit(count: int, dim: int = 6, dtype: torch.dtype = torch.float64) -> Tensor:
    return F.normalize(torch.randn(count, dim, dtype=torch.float64), dim=1).to(dtype)


def concatenated(q: Tensor, k: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """Compute the loss as MoCo's released code does: cross entropy with class 0, whose logit (the positive) comes first."""
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ negatives.T], dim=1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long), reduction='none')


@pytest.mark.parametrize('dtype, tolerance', [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize('chunk', [1, 12, 2**21])
@pytest.mark.parametrize('count', [0, 1, 11])
def test_loss_and_gradient_equal_concatenated_logits(monkeypatch, count, chunk, dtype, tolerance):
    """With 4 queries, the values of `chunk` give chunks of one negative, of three negatives (11 is not a multiple of 3),
    or of all negatives.
    """
    monkeypatch.setattr(module, 'CHUNK', chunk)
    leaves, negatives = [t.requires_grad_() for t in (unit(4), unit(4))], unit(count)
    weights = torch.randn(4, dtype=torch.float64)
    expected = concatenated(*leaves, negatives, 0.2)
    losses, nearer = info_nce(*(leaf.to(dtype) for leaf in leaves), negatives.to(dtype), 0.2)
    torch.testing.assert_close(losses.double(), expected, atol=tolerance, rtol=tolerance)
    slopes = [torch.autograd.grad(loss.double() @ weights, leaves) for loss in (losses, expected)]
    for got, want in zip(*slopes):
        torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)
    assert nearer.tolist() == [all(a @ b > a @ n for n in negatives) for a, b in zip(*leaves)]


def test_autocast_narrows_only_the_products():
    """4 queries and 600 000 negatives have more logits than fit into a chunk."""
    dtype, sizes = torch.bfloat16, []
    q, k, negatives = unit(4, 8, torch.float32).requires_grad_(), unit(4, 8, torch.float32), unit(600_000, 8)
    keep = torch.autograd.graph.saved_tensors_hooks(lambda one: sizes.append(one.numel()) or one, lambda one: one)
    narrow = negatives.float()
    with torch.autocast('cpu', dtype), Seen() as seen, keep:
        loss, _ = info_nce(q, k, narrow, 0.2)
        loss.sum().backward()
    assert loss.dtype == q.grad.dtype == torch.float32
    assert seen.cast == negatives.numel(), 'the negatives are not cast exactly once'
    assert seen.products == {dtype} and seen.widest * 4 <= module.CHUNK < negatives.shape[0] * 4
    assert max(sizes) == 4 * 8, 'autograd keeps more than one vector for each query'
    exact = q.detach().double().requires_grad_()
    expected = concatenated(exact, k.double(), negatives, 0.2)
    expected.sum().backward()
    # A logit is a product of two unit vectors, divided by the temperature 0.2. This is its rounding
    # error in bfloat16.
    rounding = torch.finfo(dtype).eps / 0.2
    torch.testing.assert_close(loss.double(), expected, atol=rounding, rtol=0)
    torch.testing.assert_close(q.grad.double(), exact.grad, atol=2 * rounding, rtol=0)


class Seen(TorchDispatchMode):
    """Record the dtypes of matrix products, the width of the widest matrix with four rows, and the number of elements that
    are converted to another dtype.
    """

    def __init__(self) -> None:
        super().__init__()
        self.products, self.widest = set(), 0
        # Only tensors with more than four rows are counted, so these are the negatives.
        self.cast = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ == '_to_copy' and len(result) > 4:
            self.cast += result.numel()
        if isinstance(result, Tensor) and result.shape[:1] == (4,) and result.ndim == 2:
            self.widest = max(self.widest, result.shape[1])
        if func.overloadpacket.__name__ == 'mm':
            self.products.add(result.dtype)
        return result


def test_large_logits_of_a_late_chunk_do_not_overflow(monkeypatch):
    monkeypatch.setattr(module, 'CHUNK', 2)
    q = torch.tensor([[1.0, 0.0]], requires_grad=True)
    negatives = torch.tensor([[-1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]])
    loss, _ = info_nce(q, torch.tensor([[0.0, 1.0]]), negatives, 1e-3)
    loss.sum().backward()
    torch.testing.assert_close(loss.detach(), torch.tensor([1000.0]))
    torch.testing.assert_close(q.grad, torch.tensor([[1000.0, -1000.0]]))
