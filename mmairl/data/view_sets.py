"""Views by name for images that are no photographs of things: view_sets.yaml has what may change, and why."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmairl.errors import UserError, closest
from mmairl.io import read_yaml

CROP = dict(type='RandomResizedCrop', size=224, scale=(0.2, 1.0))
DOMAINS = read_yaml(Path(__file__).with_suffix('.yaml'), dict[str, list[dict[str, Any]]])


def reasons(name: str) -> list[tuple[dict, str]]:
    """Return the changes of a list of views, each with what it stands for."""
    if name not in DOMAINS:
        raise UserError(
            f"there are no views '{name}'{closest(name, DOMAINS)}; say one of {', '.join(DOMAINS)}, or give a list"
        )
    return [({key: item for key, item in step.items() if key != 'because'}, step['because']) for step in DOMAINS[name]]


def named_views(name: str, like: Sequence[Sequence[dict]] = ((CROP,), (CROP,))) -> list[list[dict]]:
    """Return the views of this name, as many and with the crops of those that they are to be `like`."""
    crops = [[dict(step) for step in view if step['type'] == 'RandomResizedCrop'] for view in like]
    return [[*crop, *(step for step, _ in reasons(name))] for crop in crops]


def expand_named_views(views: Any) -> Any:
    """Return views that a config has by their name as the list that it stands for, and others as they are."""
    return named_views(views) if isinstance(views, str) else views
