"""Two processes against one with the joined batch, on the CPU, through the path that GPUs take."""

from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent / 'two_processes.py'
# ShuffleBN's parts differ with the number of processes, by design: MoCo v2 is not among them.
FRAMEWORKS = ('mocov2_syncbn', 'mocov2plus', 'smocov2plus', 'byol', 'mocov2plus_lars', 'byol_lars')
NAMES = [f'{name}_r50_200e.py' for name in FRAMEWORKS]
NAMES += ['../projects/byol_variants/configs/simclr_r50_300e.py', '../projects/msbreg/configs/msbreg_k2_r50_300e.py']


@pytest.fixture(scope='module')
def trained(tmp_path_factory, run_processes):
    folder = tmp_path_factory.mktemp('processes')
    for count, launcher in ((1, 'none'), (2, 'pytorch')):
        run_processes(count, SCRIPT, launcher, folder / f'{count}.pth', folder / f'run{count}', *NAMES)
    return [torch.load(folder / f'{count}.pth', weights_only=True) for count in (1, 2)]


@pytest.mark.parametrize('name', NAMES, ids=lambda name: Path(name).stem)
def test_two_processes_equal_one_with_the_joined_batch(trained, name):
    """SyncBN, gradients, teacher and queue: float64, so that what differs is arithmetic and not rounding."""
    one, two = (saved[name] for saved in trained)
    assert two['wrapped'] and not one['wrapped']
    assert one['knn'] == two['knn']
    torch.testing.assert_close(two['probe'], one['probe'], atol=1e-10, rtol=1e-10)
    for key, value in one['weights'].items():
        other = two['weights'][key]
        if key == 'queue.vectors':  # the two processes' halves of a batch stand in another order
            value, other = (rows[rows[:, 0].argsort()] for rows in (value, other))
        torch.testing.assert_close(other, value, atol=1e-10, rtol=1e-10, msg=lambda text, key=key: f'{key}: {text}')
