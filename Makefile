# In a fresh clone, run `make demo` or `make test` directly. Both create .venv if it is missing.
.PHONY: demo test test-all lint docs core full clean
PYTEST = OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadfile --max-worker-restart 0 --durations 20

demo: core
	.venv/bin/python tools/demo.py

# Run the fast tests in two workers with one thread each; a worker runs all tests of a file.
test: full lint
	$(PYTEST) --timeout 600

# Also run the slow tests. Tests that need Slurm or a browser fail if it is missing.
test-all: full lint
	MMAIRL_REQUIRED="Slurm browser" $(PYTEST) -m 'slow or not slow' --timeout 1800

lint: full
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

# Build the documentation site, build/site/index.html. The separate environment keeps the pinned versions in .venv unchanged.
docs: build/docs-venv/.installed
	NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/mkdocs build --strict

build/docs-venv/.installed: requirements/docs.txt
	$${PYTHON:-python3} -m venv build/docs-venv
	build/docs-venv/bin/python -m pip --disable-pip-version-check -q install -r $<
	touch $@

core full:
	@requirements/install.sh $@

# Do not delete work_dirs, because it holds training runs.
clean:
	rm -rf .venv build *.egg-info
