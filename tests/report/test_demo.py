"""The demo command, run on few images."""

import os
import subprocess
import sys
from pathlib import Path

from harness.outline import sound

from mmairl.analysis.geometry import CHANGES

ROOT = Path(__file__).parents[2]
SMALL = [
    'train_cfg.max_epochs=1',
    'train_dataloader.dataset.count=128',
    'evaluation.train.count=160',
    'evaluation.test.count=80',
    'total_batch_size=64',
    'model.queue.length=128',
]


def test_demo_writes_its_page(tmp_path):
    command = [sys.executable, 'tools/demo.py', '--seed', '3', '--work-dir', str(tmp_path), '--cfg-options', *SMALL]
    env = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    process = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr[-3000:]
    page = (tmp_path / 'report.html').read_text()
    for text in ('raw pixels, half size', 'random initialisation', 'trained student', 'seed 3'):
        assert text in page, text
    counts = sound(page).counts
    assert (counts['section'], counts['table']) == (7, 1) and str(tmp_path / 'report.html') in process.stdout.replace(
        '\n', ''
    )
    checkpoint = tmp_path / 'epoch_1.pth'
    assert f'next: mmairl evaluate knn mmairl::demo/mocov2plus_shapes.py {checkpoint}\n' in process.stdout
    # The SVG elements are bars (three rows, two scores) and a still picture of each chart.
    assert counts['svg'] == 3 * 2 + page.count('class="curves')
    assert page.count('class="curves') == 2 + 4 + len(CHANGES)
    assert counts['img'] == 8 * 3 + 8 * (1 + 7)  # The images are views and neighbors
