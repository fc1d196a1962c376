"""Imports, help and completion of the command line. Config names also work in other programs."""

import argparse
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from mmairl.analysis import measures
from mmairl.checkpoints import normrescale as rescaling
from mmairl.checkpoints.write import WRITERS
from mmairl.cli import convert, evaluate, main, normrescale, transfer
from mmairl.evaluation import knn, protocol
from mmairl.registry import PROTOCOLS
from mmairl.study.statistics import sequential
from mmairl.transfer import tasks

ROOT = Path(__file__).parents[2]
# Importing any of these packages takes more than a tenth of a second, except numpy. numpy is
# listed because most of the others import it.
HEAVY = 'torch torchvision mmengine mmcv mmpretrain mmdet numpy scipy sklearn matplotlib pandas msgspec joblib rich cv2'
# `mmairl report` writes these pages.
PAGES = ('study', 'health', 'views', 'compare', 'map')


def python(code: str, folder: Path = ROOT) -> str:
    """Run code in a separate process, and return the last line that it prints."""
    env = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    command = [sys.executable, '-W', 'ignore', '-c', code]
    process = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip().splitlines()[-1]


CALLS = f"""
import sys
from mmairl.cli.main import COMMANDS, main

calls = [(['--help'], 0), (['--version'], 0), ([], 2), (['trian'], 2)]
calls += [([name, '--help'], 0) for name in COMMANDS]
calls += [(['report', page, '--help'], 0) for page in {PAGES}]
calls += [([name, '--nonsense'], 2) for name in COMMANDS]
calls += [(['train', 'a.py', '--cfg-options', 'lr'], 2), (['pack', 'images'], 2), (['evaluate', 'kn', 'a.py'], 2)]
calls += [(['evaluate', 'knn', 'a.py'], 2), (['train'], 2), (['normrescale', 'a.pth', 'b.pth'], 2)]
wrong = []
for words, code in calls:
    try:
        main(words)
    except SystemExit as left:
        if (left.code or 0) == code:
            continue
    wrong.append(words)
print(wrong, sorted({set(HEAVY.split())} & set(sys.modules)))
"""


def test_help_and_argument_errors_import_nothing_heavy():
    assert python(CALLS) == '[] []'


def test_no_command_prints_the_commands(capsys):
    with pytest.raises(SystemExit, match='2'):
        main.main([])
    assert 'pre-train a model from a config' in capsys.readouterr().err


IMPORT = f"""
import os, signal, sys
before = dict(os.environ), [signal.getsignal(number) for number in signal.valid_signals()]
import mmairl
after = dict(os.environ), [signal.getsignal(number) for number in signal.valid_signals()]
print(before == after, sorted({set(HEAVY.split())} & set(sys.modules)), 'mmairl.registry' in sys.modules)
"""


def test_importing_the_package_has_no_side_effect():
    assert python(IMPORT) == 'True [] False'


PREPARE = """
import os, signal, sys
from mmairl.cli import prepare
prepare()
heard = callable(signal.getsignal(signal.SIGTERM))
print(heard, os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)
"""


def test_prepare_runs_before_torch_is_imported():
    assert python(PREPARE) == 'True PASSIVE False'


BASE = "Config.fromfile('mine.py').total_batch_size"
HUB = "get_config('mmairl::mocov2plus_r50_200e.py').total_batch_size"


@pytest.mark.parametrize(
    'imports, call',
    [
        ('import mmairl; from mmengine import Config', BASE),
        ('from mmengine import Config; import mmairl', BASE),
        ('import mmairl; from mmengine.hub import get_config', HUB),
        pytest.param('import mmairl; from mmengine.config import Config', BASE, marks=pytest.mark.slow),
        pytest.param('from mmengine.hub import get_config; import mmairl', HUB, marks=pytest.mark.slow),
        pytest.param('import mmairl.registry; from mmengine import Config', BASE, marks=pytest.mark.slow),
    ],
)
def test_config_names_work_after_any_import(tmp_path, imports, call):
    (tmp_path / 'mine.py').write_text("_base_ = 'mmairl::mocov2plus_r50_200e.py'\n")
    assert python(f'{imports}; print({call})', tmp_path) == '1024'


def test_choices_in_parsers_equal_those_of_the_package():
    assert set(evaluate.PROTOCOLS) == PROTOCOLS.module_of.keys()
    assert evaluate.BASELINES == protocol.BASELINES
    assert transfer.DEFAULT == tasks.DEFAULT and set(transfer.TASKS) == set(tasks.TASKS)
    assert (*WRITERS, 'hub', 'onnx') == convert.FORMATS
    assert (normrescale.PER, normrescale.STATISTICS) == (rescaling.PER, rescaling.STATISTICS)


def help_of(command: str) -> list[argparse.Action]:
    """Return the actions of a command's argument parser."""
    return [action for action in main.parser_for(*command.split())._actions if action.dest != 'help']


SETTINGS = "_base_ = 'mmairl::demo/mocov2plus_shapes.py'\nevaluation = dict(settings=dict(linear=dict()))\n"


@pytest.mark.parametrize(
    'words, protocol',
    [
        (['mmairl::demo/mocov2plus_shapes.py', 'a.pth'], 'knn'),
        (['mine.py', 'a.pth'], 'linear'),
        (['mine.py', 'a.pth', '--protocol', 'svm'], 'svm'),
        (['no_such_config.py', 'a.pth'], 'knn'),
    ],
)
def test_tool_test_uses_the_protocol_of_the_config(words, protocol, tmp_path, monkeypatch):
    (tmp_path / 'mine.py').write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)
    words_of = runpy.run_path(str(ROOT / 'tools/test.py'))['words']
    expected = [protocol, *words[:2], '--launcher', 'none']
    assert words_of([*words, '--launcher', 'none']) == expected


@pytest.mark.parametrize('shell', main.SHELLS)
def test_completion_names_commands_and_flags(shell, capsys):
    pytest.importorskip('shtab', reason='shtab is not installed (pip install shtab)')
    with pytest.raises(SystemExit):
        main.main(['--print-completion', shell])
    script = capsys.readouterr().out
    assert 'normrescale' in script and '--anchor-prefix' in script


def test_completion_without_shtab_is_an_error(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'shtab', None)
    with pytest.raises(SystemExit, match='2'):
        main.main(['--print-completion', 'bash'])
    assert 'pip install shtab' in capsys.readouterr().err


@pytest.mark.parametrize('command', [*main.COMMANDS, *(f'report {page}' for page in PAGES)])
def test_help_of_each_flag_states_its_default(command):
    for action in help_of(command):
        if action.option_strings and action.help != argparse.SUPPRESS and not action.required:
            exits = re.search(r'and exit\b', action.help)
            assert exits or '(default: ' in action.help, action.option_strings


def test_defaults_in_help_are_those_of_the_package():
    stated = {flag: action.help for name in main.COMMANDS for action in help_of(name) for flag in action.option_strings}
    assert f'(default: {knn.TEMPERATURE})' in stated['--temperature']
    assert f'(default: enough for {sequential.USUAL} seeds' in stated['--most']
    assert f'measures: {measures.IMAGES}' in next(
        action.help for action in help_of('analyze') if action.dest == 'images'
    )
