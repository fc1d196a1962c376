# In a fresh clone, run `make demo` or `make test` directly. Both create .venv if it is missing.
.PHONY: demo test test-all gpu lint docs core full ops clean

demo: core
	.venv/bin/python tools/demo.py

# Run the fast tests in two workers with one thread each; a worker runs all tests of a file. After 900 s, a hanging test fails and its
# stack is printed. If a worker dies, the run ends.
test: full lint
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadfile --max-worker-restart 0 --timeout 900 --durations 20

# Run all tests, including slow tests and the tests of projects, in portions of about five minutes with two workers. Files of tests that have
# passed are skipped as long as no file of the repository changes, so an interrupted call can be repeated. Tests that need Slurm or a browser
# fail if these are missing.
test-all: full lint build/deepspeed-venv/.installed
	MMAIRL_REQUIRED="Slurm browser" OMP_NUM_THREADS=1 PYTHONPATH=tests .venv/bin/python -m harness.portions
	MMAIRL_REQUIRED=DeepSpeed OMP_NUM_THREADS=1 build/deepspeed-venv/bin/python -m pytest -m 'slow or not slow' tests/engine/sharding/test_deepspeed.py

# Install DeepSpeed into a separate environment on top of .venv, because mmengine imports DeepSpeed at each start if it is installed.
build/deepspeed-venv/.installed: requirements/deepspeed.txt | full
	.venv/bin/python -m venv build/deepspeed-venv
	.venv/bin/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
		>$$(echo build/deepspeed-venv/lib/python*/site-packages)/base.pth
	build/deepspeed-venv/bin/python -m pip --disable-pip-version-check -q install -c requirements/constraints.txt -r $<
	touch $@

# Check and measure this machine's GPU in at most 560 s, and write work_dirs/gpu_visit/index.html. NO_INSTALL=1 uses the installed Python.
gpu: $(if $(NO_INSTALL),,full)
	$(if $(NO_INSTALL),python3,.venv/bin/python) -m projects.benchmark.gpu_visit $(ARGS)

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

# Install into .venv. `ops` compiles mmcv's ops, which takes 20 minutes on 2 cores; mmairl does not need them.
core full ops:
	@requirements/install.sh $@

# Do not delete work_dirs, because it holds training runs.
clean:
	rm -rf .venv build *.egg-info
