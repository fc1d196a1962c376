"""The committed records of studies give the committed results again."""

import shutil

import pytest
from study.small_studies import ROOT

from mmairl.cli.main import main
from mmairl.io import read_json

RECORDS = [path.parent for path in sorted(ROOT.glob('results/records/*/study.json'))]


@pytest.mark.parametrize('folder', RECORDS, ids=lambda folder: folder.name)
def test_committed_records_give_the_committed_results(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    committed = read_json(folder / 'study.json')
    copy = shutil.copytree(folder, tmp_path / folder.name)
    command = committed.pop('command')
    command[command.index('--out') + 1] = str(copy)
    main([*command[1:], '--seeds', *map(str, committed['seeds']), '--collect'])
    found = read_json(copy / 'study.json')
    found.pop('command')
    assert found == committed
