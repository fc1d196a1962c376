"""InfoNCE in chunks against the whole logit matrix: value, gradients, precision, and what it keeps in memory."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmairl.models import contrast
from mmairl.models.contrast import info_nce


def unit(rows: int, dim: int = 6, dtype: torch.dtype = torch.float64) -> Tensor:
    return F.normalize(torch.randn(rows, dim, dtype=torch.float64), dim=1).to(dtype)


def concatenated(q: Tensor, k: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """As MoCo's release does: the positive in front of all negatives, cross entropy with class 0."""
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ negatives.T], dim=1) / temperature
    labels = torch.zeros(len(q), dtype=torch.long, device=q.device)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels, reduction='none')


@pytest.fixture(params=[1, 12, 2**21], ids='{} logits a chunk'.format)
def chunked(request, monkeypatch):
    """From one negative a chunk, over sizes that do not divide their number, to all in one."""
    monkeypatch.setattr(contrast, 'CHUNK', request.param)


@pytest.mark.parametrize('count', [1, 11])
def test_loss_and_gradients_equal_the_concatenated_form(chunked, count):
    leaves, negatives = [t.requires_grad_() for t in (unit(4), unit(4))], unit(count)
    weights = torch.randn(4, dtype=torch.float64)
    wanted = concatenated(*leaves, negatives, 0.2)
    found, _ = info_nce(*leaves, negatives, 0.2)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)
    slopes = [torch.autograd.grad(loss @ weights, leaves) for loss in (found, wanted)]
    for got, want in zip(*slopes):
        torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-12)


def test_float32_is_as_near_to_float64_as_the_concatenated_form(monkeypatch):
    monkeypatch.setattr(contrast, 'CHUNK', 1000)
    exact = [unit(16, 32), unit(16, 32), unit(5000, 32)]
    errors = []
    for form in (lambda *a: info_nce(*a)[0], concatenated):
        q = exact[0].float().requires_grad_()
        loss = form(q, exact[1].float(), exact[2].float(), 0.07)
        (slope,) = torch.autograd.grad(loss.sum(), q)
        wanted_q = exact[0].clone().requires_grad_()
        wanted = concatenated(wanted_q, *exact[1:], 0.07)
        (wanted_slope,) = torch.autograd.grad(wanted.sum(), wanted_q)
        errors.append([(loss - wanted).abs().max().item(), (slope - wanted_slope).abs().max().item()])
    for ours, theirs in zip(*errors):
        assert ours <= 2 * theirs + 1e-6


def test_under_autocast_only_the_products_are_in_low_precision():
    dtype = torch.bfloat16
    q, k, negatives = unit(4, 32, torch.float32).requires_grad_(), unit(4, 32, torch.float32), unit(3000, 32)
    seen = Seen()
    with torch.autocast('cpu', dtype), seen:
        loss, _ = info_nce(q, k, negatives.float(), 0.2)
        loss.sum().backward()
    assert loss.dtype == q.grad.dtype == torch.float32
    assert seen.products == {dtype}
    exact = q.detach().double().requires_grad_()
    wanted = concatenated(exact, k.double(), negatives, 0.2)
    wanted.sum().backward()
    rounding = torch.finfo(dtype).eps / 0.2  # of one logit of norm 1 / t
    torch.testing.assert_close(loss.double(), wanted, atol=rounding, rtol=0)
    torch.testing.assert_close(q.grad.double(), exact.grad, atol=2 * rounding, rtol=0)


def test_the_positive_has_to_be_nearer_than_every_negative_of_every_chunk(chunked):
    q, k, negatives = unit(40, 3), unit(40, 3), unit(7, 3)
    _, nearer = info_nce(q, k, negatives, 0.2)
    wanted = torch.tensor([all((a @ b).item() > (a @ n).item() for n in negatives) for a, b in zip(q, k)])
    assert torch.equal(nearer, wanted) and 0 < wanted.sum() < 40


def test_no_negatives_give_no_loss_and_no_gradient(chunked):
    leaves = [t.requires_grad_() for t in (unit(3), unit(3))]
    loss, nearer = info_nce(*leaves, unit(0), 0.2)
    loss.sum().backward()
    assert not loss.any() and nearer.all() and not leaves[0].grad.any() and not leaves[1].grad.any()


def test_large_logits_of_a_late_chunk_do_not_overflow(monkeypatch):
    monkeypatch.setattr(contrast, 'CHUNK', 2)
    q = torch.tensor([[1.0, 0.0]], requires_grad=True)
    negatives = torch.tensor([[-1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]])
    loss, _ = info_nce(q, torch.tensor([[0.0, 1.0]]), negatives, 1e-3)
    loss.sum().backward()
    torch.testing.assert_close(loss.detach(), torch.tensor([1000.0]))
    torch.testing.assert_close(q.grad, torch.tensor([[1000.0, -1000.0]]))


class Seen(TorchDispatchMode):
    """The types of the products, the largest result, and the most bytes of results alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.products, self.largest, self.peak = set(), 0, 0
        self.alive: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {StorageWeakRef(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (storage := StorageWeakRef(tensor.untyped_storage())) not in given:
                self.alive[storage] = tensor.untyped_storage().nbytes()
                self.largest = max(self.largest, tensor.numel())
        self.alive = {storage: size for storage, size in self.alive.items() if not storage.expired()}
        self.peak = max(self.peak, sum(self.alive.values()))
        if func.overloadpacket.__name__ == 'mm':
            self.products.add(result.dtype)
        return result


def watched(form, *inputs: Tensor) -> Seen:
    q = inputs[0].clone().requires_grad_()
    with Seen() as seen:
        form(q, *inputs[1:], 0.2).mean().backward()
    return seen


def test_no_logit_matrix_is_ever_made_and_the_peak_is_below_0_4_of_the_concatenated_form():
    """At MoCo's queue of 65 536 and a batch of 256; the width has no part in it."""
    inputs = unit(256, 8, torch.float32), unit(256, 8, torch.float32), unit(65536, 8, torch.float32)
    ours, theirs = (watched(form, *inputs) for form in (lambda *a: info_nce(*a)[0], concatenated))
    assert theirs.largest >= 256 * 65536, 'the counter sees the matrix where there is one'
    assert ours.largest <= contrast.CHUNK and ours.peak <= 0.4 * theirs.peak


def test_nothing_is_kept_for_backward_but_a_mean_a_query():
    inputs = unit(16, 8, torch.float32).requires_grad_(), unit(16, 8, torch.float32), unit(5000, 8, torch.float32)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()), lambda _: None):
        info_nce(*inputs, 0.2)
    assert max(kept) == 16 * 8
