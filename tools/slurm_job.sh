#!/usr/bin/env bash
# sbatch --ntasks=8 --gres=gpu:8 --cpus-per-task=8 --time=24:00:00 tools/slurm_job.sh CONFIG WORK_DIR [train.py's options]
# from the repository's folder: a run that goes back into the queue before its time limit, and goes on where it was until it is
# done. `scancel` saves and ends it. Also as a task of an array. PYTHON is the interpreter, or else .venv's.
#SBATCH --signal=USR1@120 --requeue --open-mode=append
set -u
[[ $# -ge 2 ]] || { echo "usage: sbatch [options] tools/slurm_job.sh CONFIG WORK_DIR [options]" >&2; exit 2; }
config=$1 work_dir=$2
shift 2
python=${PYTHON:-$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python)}
source mmairl/signals.sh || exit 2
# --kill-on-bad-exit=0: the first that has saved must not end the others; --wait: those of one that has crashed end after it.
# srun does not know sbatch's --cpus-per-task by itself. In a session of its own, what ends the job's processes spares it.
start_again setsid srun --kill-on-bad-exit=0 --wait=120 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \
    "$python" -u tools/train.py "$config" --work-dir "$work_dir" --launcher slurm --resume "$@"
[[ $code == 75 ]] && go_back "$work_dir"
exit "$code"
