"""Run one of the two processes of a test that compares mmairl's and lightly's step with small crops."""

from mmairl.engine.distributed import start_processes
from mmairl.engine.run import register
from mmairl.signals import stop_processes
from projects.benchmark.crops import check_one_step

if __name__ == '__main__':
    start_processes('pytorch')
    register()
    check_one_step()
    stop_processes()
