"""Named view sets for images that are not photographs of objects. view_sets.yaml lists their transforms with reasons."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmairl.errors import UserError, closest
from mmairl.io import read_yaml

CROP = dict(type='RandomResizedCrop', size=224, scale=(0.2, 1.0))
DOMAINS = read_yaml(Path(__file__).with_suffix('.yaml'), dict[str, list[dict[str, Any]]])


def reasons(name: str) -> list[tuple[dict, str]]:
    """Return the transforms of a view set, each with the reason for it."""
    if name not in DOMAINS:
        known = ', '.join(DOMAINS)
        raise UserError(
            f"views: unknown name ('{name}'){closest(name, DOMAINS)}; set one of {known}, or a list",
            code='unknown-views',
        )
    pairs = []
    for step in DOMAINS[name]:
        transform = dict(step)
        because = transform.pop('because')
        pairs.append((transform, because))
    return pairs


def named_views(name: str, like: Sequence[Sequence[dict]] = ((CROP,), (CROP,))) -> list[list[dict]]:
    """Return the views of a view set: as many as in `like`, each with the crop of its view in `like`."""
    transforms = [transform for transform, _ in reasons(name)]
    views = []
    for view in like:
        crops = [dict(step) for step in view if step['type'] == 'RandomResizedCrop']
        views.append([*crops, *(dict(transform) for transform in transforms)])
    return views


def expand_named_views(views: Any) -> Any:
    """Replace the name of a view set by its views. Return other views unchanged."""
    return named_views(views) if isinstance(views, str) else views
