"""What the tests of data sets share."""

import pytest


@pytest.fixture
def own_cache(tmp_path, monkeypatch) -> None:
    """Where images of shards were found is kept for this test alone."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
