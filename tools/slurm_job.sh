#!/usr/bin/env bash
# sbatch --ntasks=8 --gres=gpu:8 --cpus-per-task=8 --time=24:00:00 tools/slurm_job.sh CONFIG WORK_DIR [options of train.py]
# Train as a Slurm job or as a task of an array. Submit this script in the folder of the repository. Before the time limit of the
# job, the run saves, and the job is requeued and resumes. After `scancel`, the run saves and ends. The variable PYTHON names the
# Python interpreter (default: the interpreter of .venv).
#SBATCH --signal=USR1@120 --requeue --open-mode=append
set -u
[[ $# -ge 2 ]] || { echo "usage: sbatch [options] tools/slurm_job.sh CONFIG WORK_DIR [options]" >&2; exit 2; }
config=$1 work_dir=$2
shift 2
python=${PYTHON:-$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python)}
source mmairl/signals.sh || exit 2
# With --kill-on-bad-exit=0, the first process that has saved and exits does not end the other processes. With --wait, the other
# processes end, too, if one process crashes. srun does not inherit --cpus-per-task from sbatch, so it is passed here. With setsid,
# signals to the process group of the job do not reach srun.
start_again setsid srun --kill-on-bad-exit=0 --wait=120 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \
    "$python" -u tools/train.py "$config" --work-dir "$work_dir" --launcher slurm --resume "$@"
[[ $code == 75 ]] && go_back "$work_dir"
exit "$code"
