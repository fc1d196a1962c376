"""Write the sample of the package, mmairl/sample/, from the work dir of a demo: python docs/sample.py work_dirs/demo

The sample has the student's backbone in float16, the config, the logged values, and the scores of k-NN.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from mmairl.checkpoints.load import load_checkpoint
from mmairl.cli.main import main
from mmairl.io import write_json

PACKAGE = Path(__file__).parents[1] / 'mmairl'
SAMPLE = Path('sample')
CONFIG = 'mmairl::demo/mocov2plus_shapes_30e.py'
# The entries of `meta` that describe the weights.
KEPT = ('cfg', 'settings', 'seed', 'epoch', 'iter', 'mmairl_version')


def write(work_dir: Path) -> None:
    def portable(value: Any) -> Any:
        """Replace the path of the work dir by its default."""
        return json.loads(json.dumps(value).replace(str(work_dir), 'work_dirs/demo'))

    source = Path((work_dir / 'last_checkpoint').read_text().strip())
    checkpoint = load_checkpoint(source)
    weights = {
        key: value.half() if value.is_floating_point() else value
        for key, value in checkpoint['state_dict'].items()
        if key.startswith('backbone.')
    }
    meta = {key: portable(checkpoint['meta'][key]) for key in KEPT}
    os.chdir(PACKAGE)
    shutil.rmtree(SAMPLE, ignore_errors=True)
    log = next(path for path in sorted(work_dir.iterdir()) if (path / 'vis_data').is_dir())
    (SAMPLE / 'log' / 'vis_data').mkdir(parents=True)
    shutil.copy(log / 'vis_data' / 'scalars.json', SAMPLE / 'log' / 'vis_data')
    write_json(
        SAMPLE / 'log' / 'config.json', portable(json.loads((log / 'config.json').read_text()))
    )
    torch.save(dict(meta=meta, state_dict=weights), SAMPLE / source.name)
    main(['evaluate', 'knn', CONFIG, str(SAMPLE / source.name), '--cache', 'none'])


if __name__ == '__main__':
    write(Path(sys.argv[1]).absolute())
