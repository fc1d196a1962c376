"""The state of all random generators of a process: kept aside, put back, and carried in a checkpoint as plain tensors."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

State = dict[str, torch.Tensor | float | None]


def random_state() -> State:
    """Python's, NumPy's, torch's and the current device's generators; nothing in it needs code to be loaded."""
    (_, of_python, next_python), (_, of_numpy, place, has_next, next_numpy) = random.getstate(), np.random.get_state()
    return dict(
        python=torch.tensor(of_python),
        python_next=next_python,
        numpy=torch.from_numpy(of_numpy.astype(np.int64)),
        numpy_place=torch.tensor([place, has_next]),
        numpy_next=next_numpy,
        torch=torch.get_rng_state(),
        device=torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    )


def set_random_state(state: State) -> None:
    """Draw on from where `random_state` was taken."""
    random.setstate((3, tuple(state['python'].tolist()), state['python_next']))
    place, has_next = state['numpy_place'].tolist()
    words = state['numpy'].cpu().numpy().astype(np.uint32)
    np.random.set_state(('MT19937', words, place, has_next, state['numpy_next']))
    torch.set_rng_state(state['torch'].cpu())
    if state['device'] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state['device'].cpu())


@contextmanager
def same_randomness() -> Iterator[None]:
    """Restore the random states of the CPU and the device at the end, so that draws inside change none after."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_initialized() else []):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
