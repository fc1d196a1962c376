"""Expect an error by its code, so that its wording is free."""

import pytest

from mmairl.errors import UserError


def raises_code(code: str, match: str | None = None) -> pytest.RaisesExc:
    """Return a block that must raise a UserError with this code."""
    return pytest.raises(UserError, match=match, check=lambda error: error.code == code)
