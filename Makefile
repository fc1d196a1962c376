# `make demo` and `make test` are all that a fresh clone needs; each makes .venv when it is missing.
.PHONY: demo test lint core full clean

demo: core
	.venv/bin/python tools/demo.py

test: full lint
	.venv/bin/python -m pytest

lint: full
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

core full:
	@requirements/install.sh $@

clean:
	rm -rf .venv work_dirs build *.egg-info
