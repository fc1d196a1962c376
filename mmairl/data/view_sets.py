"""Views as they are in a config."""

from typing import Any


def expand_named_views(views: Any) -> Any:
    return views
