"""The command line as a whole: help, imports, wrong inputs, and completion."""

import inspect
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from mmairl.cli.main import COMMANDS, find, main, parser_for
from mmairl.cli.report import PAGES

ROOT = Path(__file__).parents[2]
# Importing any of these packages takes more than a tenth of a second.
HEAVY = 'torch torchvision mmengine mmcv mmpretrain numpy scipy sklearn matplotlib pandas msgspec joblib rich cv2'
CALLS = f"""
import sys
from mmairl.cli.main import COMMANDS, main

calls = [(['--help'], 0), (['--version'], 0), ([], 2), (['trian'], 2)]
calls += [([name, '--help'], 0) for name in COMMANDS] + [([name, '--nonsense'], 2) for name in COMMANDS]
calls += [(['train'], 2), (['evaluate', 'knn', 'a.py'], 2), (['pack', 'images'], 2)]
for words, code in calls:
    try:
        main(words)
    except SystemExit as left:
        assert (left.code or 0) == code, words
print(sorted({set(HEAVY.split())} & set(sys.modules)))
"""
IMPORT = f"""
import os, signal, sys
before = dict(os.environ), [signal.getsignal(number) for number in signal.valid_signals()]
import mmairl
after = dict(os.environ), [signal.getsignal(number) for number in signal.valid_signals()]
print(before == after, sorted({set(HEAVY.split())} & set(sys.modules)))
"""


def python(*words: str) -> str:
    env = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    process = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    return process.stdout.strip().splitlines()[-1]


def test_help_and_wrong_words_import_nothing_heavy():
    assert python('-c', CALLS) == '[]'


def test_import_has_no_side_effect():
    assert python('-c', IMPORT) == 'True []'


def test_help_takes_half_a_second_of_cpu():
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    python('-m', 'mmairl', '--help')
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 0.5


@pytest.mark.parametrize(
    'words', [*((name,) for name in COMMANDS), *(('report', page) for page in PAGES)], ids=' '.join
)
def test_every_argument_has_help_and_a_default(words):
    function = find(words)[0]
    assert inspect.getdoc(function).split('\n')[0][0].isupper()
    for action in parser_for(*words)._actions:
        assert action.help, action.dest
        if action.option_strings and not action.required and action.dest != 'help':
            assert '(default: ' in action.help, action.dest


@pytest.mark.parametrize('name', COMMANDS[:-1])
def test_every_command_has_a_tool(name):
    tool = ROOT / f'tools/{name}.py'
    assert (
        os.access(tool, os.X_OK)
        and tool.read_text().startswith('#!')
        and f"['{name}', " in tool.read_text()
    )


def test_completion_names_commands_and_flags(capsys):
    pytest.importorskip('shtab', reason='shtab is not installed')
    main(['completion', 'bash'])
    script = capsys.readouterr().out
    assert 'normrescale' in script and '--anchor' in script


DEMO = 'mmairl::demo/mocov2plus_shapes.py'


@pytest.mark.parametrize(
    'words',
    [
        'train',
        'train no_such.py',
        'train mmairl::mocov2plus_r50_20e.py',
        f'train {DEMO} --suggest images',
        f'train {DEMO} --per-gpu 7',
        f'train {DEMO} --cfg-options modle.depth=1',
        f'train {DEMO} --cfg-options epochs=1',
        f'train {DEMO} --strategy zero9',
        f'evaluate knn {DEMO}',
        f'evaluate nearest {DEMO} --init random',
        f'evaluate knn {DEMO} no_such.pth',
        f'evaluate knn {DEMO} --init random --settings kk=1',
        'evaluate knn no_such.pth --data nowhere',
        'convert no_such.pth out.pth --to timm',
        'normrescale a.pth b.pth',
        'analyze cka a.pth b.pth',
        'analyze norms a.pth a.pth',
        'report nowhere',
        'report health nowhere',
        'embed a.pth images out.npy',
        'pack images',
        'study no_such.yaml',
        'transfer a.pth --tasks nothing',
    ],
)
def test_wrong_input_is_one_line(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match='2'):
        main(words.split())
    lines = capsys.readouterr().err.strip().splitlines()
    assert [line for line in lines if line.startswith('error: ')] == lines[-1:], lines
    assert not list(tmp_path.rglob('*.pth'))
