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
# What is sent to this shell goes to the processes as USR1, upon which they save: srun kills them at once on TERM.
told= term= child=
trap 'told=1; pass_on' USR1 USR2
trap 'told=1 term=1; pass_on' TERM INT HUP
pass_on() { [[ -z $child ]] || kill -USR1 "$child" 2>/dev/null; }
# --kill-on-bad-exit=0: the first that has saved must not end the others; --wait: those of one that has crashed end after it.
# srun does not know sbatch's --cpus-per-task by itself.
setsid srun --kill-on-bad-exit=0 --wait=120 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} \
    "$python" -u tools/train.py "$config" --work-dir "$work_dir" --launcher slurm --resume "$@" &
child=$!
[[ -z $told ]] || pass_on
while kill -0 "$child" 2>/dev/null; do wait "$child"; done # a trap ends `wait` early
wait "$child"
code=$?
# 138: the signal came before Python was there.
[[ $code == 75 || $code == 138 || (-n $told && $code != 0) ]] || exit $code
# TERM at the time limit puts it back, TERM by scancel does not; what Slurm preempts, it puts back itself.
[[ -z $term || $(squeue -h -j "$SLURM_JOB_ID" -o %r) == TimeLimit ]] || exit 143
# One task of an array by its own number, or all would start again.
scontrol requeue "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}"
exit $code
