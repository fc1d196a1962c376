"""Whether a checkpoint's tensors are a network's tensors, name by name and shape by shape."""

from pathlib import Path

from torch import Tensor

from mmairl.errors import UserError


def require_same_keys(there: dict[str, Tensor], here: dict[str, Tensor], path: str | Path) -> None:
    """Refuse a checkpoint unless it and the network name the same tensors with the same shapes."""
    shapes = [key for key in here if key in there and here[key].shape != there[key].shape]
    missing = [key for key in here if key not in there]
    unexpected = [key for key in there if key not in here]
    faults = []
    if shapes:
        key = shapes[0]
        faults.append(
            f'{key} is {tuple(there[key].shape)} there and {tuple(here[key].shape)} in the config{_more(shapes[1:])}'
        )
    if missing:
        faults.append(f'it lacks {_few(missing)}')
    if unexpected:
        faults.append(f'it has {_few(unexpected)} beyond the config')
    if faults:
        raise UserError(
            f'checkpoint {path} holds another architecture: {"; ".join(faults)}; give the config it was trained with'
        )


def _few(keys: list[str], shown: int = 2) -> str:
    return ', '.join(keys[:shown]) + _more(keys[shown:])


def _more(rest: list[str]) -> str:
    return f' (and {len(rest)} more)' if rest else ''
