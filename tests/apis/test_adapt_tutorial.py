"""The tutorial on adapting a released model runs, with few images and epochs."""

import json
import re
import shutil
from pathlib import Path

import mmairl

PAGE = Path(__file__).parents[2] / 'docs/tutorials/adapt_a_released_model.md'
SHORTER = {
    'count=3000': 'count=120',
    '< 2000': '< 80',
    'epochs=10': 'epochs=1, workers=0',
    "'work_dirs/small', 5": "'work_dirs/small', 1, workers=0",
}


def test_tutorial_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path('work_dirs/released').mkdir(parents=True)
    shutil.copy(mmairl.sample(), 'work_dirs/released/epoch_6.pth')
    text = PAGE.read_text()
    for long, short in SHORTER.items():
        assert text.count(long) == 1
        text = text.replace(long, short)
    for block in re.findall(r'^```python\n(.*?)^```$', text, re.MULTILINE | re.DOTALL):
        exec(block, {})
    found = json.loads(Path('work_dirs/adapted/guard.json').read_text())
    output = capsys.readouterr().out
    assert found['sentence'] in output and found['checkpoint'] in output
    assert Path('work_dirs/small/epoch_1.pth').is_file()
