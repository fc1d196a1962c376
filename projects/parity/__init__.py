"""The same numbers through other libraries' code and ours."""
