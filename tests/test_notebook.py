"""The notebook of the documentation runs at tiny size."""

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / 'docs/tutorials/first_run.ipynb'


@pytest.mark.slow
def test_notebook_runs(tmp_path, monkeypatch):
    nbclient = pytest.importorskip('nbclient', reason='nbclient is not installed')
    nbformat = pytest.importorskip('nbformat', reason='nbformat is not installed')
    monkeypatch.setenv('PYTHONPATH', str(NOTEBOOK.parents[2]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells[1].source = 'COUNT, EPOCHS = 96, 1'
    nbclient.NotebookClient(
        notebook, timeout=600, resources=dict(metadata=dict(path=tmp_path))
    ).execute()
    outputs = [
        output.text
        for cell in notebook.cells
        for output in cell.get('outputs', [])
        if output.name == 'stdout'
    ]
    assert sum('k-NN' in text for text in outputs) == 2
    assert '.png' in outputs[-1]
