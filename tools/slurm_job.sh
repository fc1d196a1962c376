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
cancelled=
trap 'cancelled=1' TERM # of scancel, which tells the processes as well: they save, and nothing starts again
# Without --kill-on-bad-exit=0, Slurm kills the other processes as soon as the first one has saved. srun does not know sbatch's
# --cpus-per-task by itself.
srun --kill-on-bad-exit=0 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \
    "$python" -u tools/train.py "$config" --work-dir "$work_dir" --launcher slurm --resume "$@"
code=$?
[[ -z $cancelled || $code == 0 ]] || exit 143
# 138: the signal came before Python was there. One task of an array is put back by its own number, or all would start again.
[[ $code != 75 && $code != 138 ]] ||
    scontrol requeue "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}"
exit $code
