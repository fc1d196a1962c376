#!/usr/bin/env bash
# tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [train.py's options], with GPUS, GPUS_PER_NODE, CPUS_PER_TASK
# and SRUN_ARGS from the environment, as in OpenMMLab; PYTHON is the interpreter, or else .venv's, as in dist_train.sh.
# On a partition without GPUs no gpu is asked for, and GPUS is the number of CPU processes.
set -euo pipefail
[[ $# -ge 4 ]] || { echo "usage: tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [options]" >&2; exit 2; }
partition=$1 job=$2 config=$3 work_dir=$4
shift 4
gpus=${GPUS:-8} per_node=${GPUS_PER_NODE:-8}
((per_node > gpus)) && per_node=$gpus
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$([[ -x $here/.venv/bin/python ]] && echo "$here/.venv/bin/python" || echo python)}
gres=()
# A partition is taken to have GPUs unless sinfo lists its nodes and none of them has any.
listed=$(sinfo -h -p "$partition" -o %G 2>/dev/null || true)
[[ -n $listed && $listed != *gpu* ]] || gres=("--gres=gpu:$per_node")
# srun kills its tasks at once on TERM and HUP, and passes USR1 on, upon which they save. In a session of its own, a terminal
# that closes or a Ctrl-C tells this shell alone. --kill-on-bad-exit=0: the first that has saved must not end the others.
stopping=$here/mmairl/signals.sh
[[ -e $stopping ]] || stopping=$here/../signals.sh # installed, this lies in the package
source "$stopping"
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
# shellcheck disable=SC2086 # SRUN_ARGS is a list of words
start setsid srun -p "$partition" --job-name="$job" ${gres[@]+"${gres[@]}"} \
    --ntasks="$gpus" --ntasks-per-node="$per_node" --cpus-per-task="${CPUS_PER_TASK:-${SLURM_CPUS_PER_TASK:-8}}" \
    --kill-on-bad-exit=0 --wait=120 ${SRUN_ARGS:-} \
    "$python" -u "$here/tools/train.py" "$config" --work-dir "$work_dir" --launcher slurm "$@"
exit "$code"
