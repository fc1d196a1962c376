"""Predefined lists of views for images that are not photographs of objects, such as satellite images.

view_sets.yaml contains the transforms of each list by name, and a reason for each transform.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmairl.errors import UserError, closest
from mmairl.io import read_yaml

CROP = dict(type='RandomResizedCrop', size=224, scale=(0.2, 1.0))
DOMAINS = read_yaml(Path(__file__).with_suffix('.yaml'), dict[str, list[dict[str, Any]]])


def reasons(name: str) -> list[tuple[dict, str]]:
    """Return the transforms that view_sets.yaml lists for this name, each with the reason for the transform."""
    if name not in DOMAINS:
        known = ', '.join(DOMAINS)
        raise UserError(
            f"views: unknown name ('{name}'){closest(name, DOMAINS)}; set one of {known}, or a list of transforms per view",
            code='unknown-views',
        )
    pairs = []
    for step in DOMAINS[name]:
        transform = dict(step)
        because = transform.pop('because')
        pairs.append((transform, because))
    return pairs


def named_views(name: str, like: Sequence[Sequence[dict]] = ((CROP,), (CROP,))) -> list[list[dict]]:
    """Return predefined views, one for each view in `like`.

    Each view consists of the crop of the view in `like`, followed by the transforms that view_sets.yaml lists for `name`.
    """
    transforms = [transform for transform, _ in reasons(name)]
    views = []
    for view in like:
        crops = [dict(step) for step in view if step['type'] == 'RandomResizedCrop']
        views.append([*crops, *(dict(transform) for transform in transforms)])
    return views


def expand_named_views(views: Any) -> Any:
    """If `views` is a string, return the views of this name in view_sets.yaml. Otherwise, return `views` unchanged."""
    return named_views(views) if isinstance(views, str) else views
