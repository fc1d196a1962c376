"""What a second process brings: the arithmetic of the table, and that the ways run."""

from projects.benchmark import scaling
from projects.benchmark.scaling import ALONE, SEVERAL, SIZE, TOGETHER, table


def test_the_table_counts_the_images_of_both_processes():
    lines = table({ALONE: [0.4, 0.5, 0.6], TOGETHER: [1.0, 1.0, 1.0]}).splitlines()
    assert lines[2] == f'| {ALONE} | 500 ms | 40 % | {SIZE.batch / 0.5:.0f} | 100 % |'
    assert lines[3] == f'| {TOGETHER} | 1000 ms | 0 % | {2 * SIZE.batch:.0f} | 50 % |'


def test_two_processes_time_every_way():
    seconds = scaling._read([scaling._start(2, steps=1)])
    assert seconds.keys() == SEVERAL.keys() and all(time > 0 for time in seconds.values())
