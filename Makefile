# `make demo` and `make test` are all that a fresh clone needs; each makes .venv when it is missing.
.PHONY: demo test test-all gpu lint docs core full ops clean

demo: core
	.venv/bin/python tools/demo.py

# Two workers of one thread each, a file at a time. A test that hangs is told, and where; a worker that dies ends the run.
test: full lint
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadfile --max-worker-restart 0 --timeout 900 --durations 20

# All tests, slow ones and those of projects too, in portions of at most ten minutes. What has passed for the same files is not run
# again, so an interrupted call can be repeated. Tests that need Slurm or a browser fail where these are missing.
test-all: full lint build/deepspeed-venv/.installed
	MMAIRL_REQUIRED="Slurm browser" OMP_NUM_THREADS=1 PYTHONPATH=tests .venv/bin/python -m harness.portions
	MMAIRL_REQUIRED=DeepSpeed OMP_NUM_THREADS=1 build/deepspeed-venv/bin/python -m pytest -m 'slow or not slow' tests/engine/sharding/test_deepspeed.py

# DeepSpeed in an environment on top of .venv, because mmengine imports it at each start where it is installed.
build/deepspeed-venv/.installed: requirements/deepspeed.txt | full
	.venv/bin/python -m venv build/deepspeed-venv
	.venv/bin/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
		>$$(echo build/deepspeed-venv/lib/python*/site-packages)/base.pth
	build/deepspeed-venv/bin/python -m pip --disable-pip-version-check -q install -c requirements/constraints.txt -r $<
	touch $@

# Check and measure this GPU in at most 560 s: work_dirs/gpu_visit/index.html. NO_INSTALL=1 uses the installed Python.
gpu: $(if $(NO_INSTALL),,full)
	$(if $(NO_INSTALL),python3,.venv/bin/python) -m projects.benchmark.gpu_visit $(ARGS)

lint: full
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

# The site, in an environment of its own, so that the pinned versions stay as they are: open build/site/index.html
docs: build/docs-venv/.installed
	NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/mkdocs build --strict

build/docs-venv/.installed: requirements/docs.txt
	$${PYTHON:-python3} -m venv build/docs-venv
	build/docs-venv/bin/python -m pip --disable-pip-version-check -q install -r $<
	touch $@

# ops: mmcv with its compiled ops, 20 minutes on 2 cores; nothing of ours needs them.
core full ops:
	@requirements/install.sh $@

# Runs are not rubbish: work_dirs stays.
clean:
	rm -rf .venv build *.egg-info
