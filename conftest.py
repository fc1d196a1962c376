"""Fixtures for all tests, including those of projects. Configs shrink to toy size, with fixed tensors as views."""

import gc
import logging
import os
import runpy
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MMLogger

from mmairl.engine.run import register
from mmairl.signals import SIGNALS

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / 'tests'))
# Importing `toy` also makes runs start faster.
from harness import toy  # noqa: E402
from harness.processes import rank_server  # noqa: E402

# A shell script that starts pytest with & makes it ignore SIGINT, and processes that tests start would inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)
gc.freeze()


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    register()
    torch.manual_seed(0)
    yield
    close_logs()


@pytest.fixture
def run_tool(monkeypatch):
    """Return a function that runs a command line in this process."""

    def run(tool: str, *arguments: object) -> None:
        monkeypatch.setattr(sys, 'argv', [tool, *map(str, arguments)])
        # A command never restores its signal handlers, because its process usually ends.
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            runpy.run_path(str(ROOT / tool), run_name='__main__')
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    return run


@pytest.fixture(autouse=True, scope='module')
def _end_runs() -> Iterator[None]:
    """After each test file, end the data workers of its runs and free their models."""
    yield
    toy.end_workers()
    gc.collect()
    # The next collection skips the imported modules, which would take a third of a second.
    gc.freeze()


def close_logs() -> None:
    """Close log files. mmengine would keep them open until the process ends, and many systems allow only 1024 open files."""
    for logger in MMLogger._instance_dict.values():
        for handler in list(logger.handlers):
            if isinstance(handler, logging.FileHandler):
                handler.close()
                logger.removeHandler(handler)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failure immediately, because pytest prints no summary if it is killed or its worker dies."""
    if report.failed and 'PYTEST_XDIST_WORKER' not in os.environ:
        crash = getattr(report.longrepr, 'reprcrash', None)
        reason = ' '.join((crash.message if crash else report.longreprtext).split())
        print(
            f'\nFAILED {report.nodeid} ({report.when}): {reason[:150]} ... {reason[150:][-250:]}',
            flush=True,
        )


# If a test is skipped for a reason that contains one of these words, it counts as failed.
REQUIRED = os.environ.get('MMAIRL_REQUIRED', '').split()


def _required(report: pytest.CollectReport | pytest.TestReport) -> None:
    reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ''
    if any(word in reason for word in REQUIRED):
        report.outcome = 'failed'
        report.longrepr = f'MMAIRL_REQUIRED="{" ".join(REQUIRED)}", but: {reason}'


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    _required(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    _required(report)
    return report


@pytest.fixture
def toy_config(tmp_path: Path) -> Callable[..., Config]:
    """Return a function that shrinks a config to toy size, for example `toy_config('mocov2plus_r50_200e.py', steps=3)`."""

    def make(name: str = 'mocov2plus_r50_200e.py', **options) -> Config:
        return toy.config(name, **{'work_dir': str(tmp_path / 'run'), **options})

    return make


@pytest.fixture(scope='session')
def run_processes(tmp_path_factory) -> Iterator[Callable[..., str]]:
    """Return a function that runs a script in N processes, as torchrun would, and returns their output."""
    with rank_server(tmp_path_factory.mktemp('ranks') / 'output.txt', {}) as run:
        yield run
