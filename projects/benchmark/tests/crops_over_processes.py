"""Run `crops.check_one_step` in one of the processes of test_two_processes_take_lightlys_step_on_crops (test_benchmark.py)."""

from mmairl.engine.distributed import start_processes
from mmairl.engine.run import register
from mmairl.signals import stop_processes
from projects.benchmark.crops import check_one_step

if __name__ == '__main__':
    start_processes('pytorch')
    register()
    check_one_step()
    stop_processes()
