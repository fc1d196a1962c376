"""Expect an error by its code, so that its message can be reworded freely."""

import pytest

from mmairl.errors import UserError


def raises_code(code: str, match: str | None = None) -> pytest.RaisesExc:
    """Return a context in which a UserError with this code must be raised."""
    return pytest.raises(UserError, match=match, check=lambda error: error.code == code)
