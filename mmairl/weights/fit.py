"""Whether a checkpoint's tensors are a network's tensors, name by name and shape by shape."""

from pathlib import Path

from torch import Tensor, nn

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


def weights_for(module: nn.Module, whole: dict[str, Tensor], prefix: str, path: str | Path) -> dict[str, Tensor]:
    """All weights of a module out of the checkpoint's tensors whose names begin with `prefix`, or an error.

    A module that ends before the last stage, as a C4 detector's backbone does, takes the stages that it has.
    """
    here = module.state_dict()
    inside = {key.removeprefix(prefix): value for key, value in whole.items() if key.startswith(prefix)}
    if not inside:
        raise UserError(f"no key of {path} starts with '{prefix}'; its keys look like {list(whole)[:3]}")
    stages = {key.split('.')[0] for key in here}
    weights = {key: value for key, value in inside.items() if key.split('.')[0] in stages}
    require_same_keys(weights, here, path)
    return weights


def _few(keys: list[str], shown: int = 2) -> str:
    return ', '.join(keys[:shown]) + _more(keys[shown:])


def _more(rest: list[str]) -> str:
    return f' (and {len(rest)} more)' if rest else ''
