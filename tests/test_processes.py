"""Two processes against one with the joined batch, on the CPU, through the path that GPUs take."""

from pathlib import Path

import torch

SCRIPT = Path(__file__).parent / 'two_processes.py'


def test_two_processes_equal_one_with_the_joined_batch(run_processes, tmp_path):
    """SyncBN, gradients, teacher and queue: float64, so that what differs is arithmetic and not rounding."""
    for count, launcher in ((1, 'none'), (2, 'pytorch')):
        run_processes(count, SCRIPT, launcher, tmp_path / f'{count}.pth', tmp_path / f'run{count}')
    one, two = (torch.load(tmp_path / f'{count}.pth', weights_only=True) for count in (1, 2))
    assert two['wrapped'] and not one['wrapped']
    for key, value in one['weights'].items():
        other = two['weights'][key]
        if key == 'queue.vectors':  # the two processes' halves of a batch stand in another order
            value, other = (rows[rows[:, 0].argsort()] for rows in (value, other))
        torch.testing.assert_close(other, value, atol=1e-10, rtol=1e-10, msg=lambda text, key=key: f'{key}: {text}')
