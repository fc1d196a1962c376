"""Save and restore the states of all random generators of a process. Checkpoints store the states as tensors and numbers."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

State = dict[str, torch.Tensor | float | None]


def random_state() -> State:
    """Return the states of the random generators of Python, NumPy, torch and the current GPU."""
    _, python_words, python_next = random.getstate()
    _, numpy_words, place, has_next, numpy_next = np.random.get_state()
    return dict(
        python=torch.tensor(python_words),
        python_next=python_next,
        numpy=torch.from_numpy(numpy_words.astype(np.int64)),
        numpy_place=torch.tensor([place, has_next]),
        numpy_next=numpy_next,
        torch=torch.get_rng_state(),
        device=torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
    )


def set_random_state(state: State) -> None:
    random.setstate((3, tuple(state['python'].tolist()), state['python_next']))
    place, has_next = state['numpy_place'].tolist()
    words = state['numpy'].cpu().numpy().astype(np.uint32)
    np.random.set_state(('MT19937', words, place, has_next, state['numpy_next']))
    torch.set_rng_state(state['torch'].cpu())
    if state['device'] is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(state['device'].cpu())


@contextmanager
def same_randomness() -> Iterator[None]:
    """Restore the states of all random generators after the block, so that the block does not affect later random numbers."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)
