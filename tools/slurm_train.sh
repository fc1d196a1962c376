#!/usr/bin/env bash
# tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [options of train.py]
# Train with srun. The environment variables GPUS, GPUS_PER_NODE, CPUS_PER_TASK and SRUN_ARGS have the same meaning as in OpenMMLab.
# On a partition without GPUs, GPUS is the number of CPU processes. The variable PYTHON names the Python interpreter (default: the
# interpreter of .venv).
set -euo pipefail
[[ $# -ge 4 ]] || { echo "usage: tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [options]" >&2; exit 2; }
partition=$1 job=$2 config=$3 work_dir=$4
shift 4
gpus=${GPUS:-8} per_node=${GPUS_PER_NODE:-8}
((per_node > gpus)) && per_node=$gpus
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$([[ -x $here/.venv/bin/python ]] && echo "$here/.venv/bin/python" || echo python)}
gres=()
# Request GPUs, unless sinfo lists the nodes of the partition and none of them has a GPU.
listed=$(sinfo -h -p "$partition" -o %G 2>/dev/null || true)
[[ -n $listed && $listed != *gpu* ]] || gres=("--gres=gpu:$per_node")
# On TERM and HUP, srun kills its tasks immediately. It passes USR1 on to its tasks, which then save. With setsid, a closed terminal
# or Ctrl-C signals only this shell. With --kill-on-bad-exit=0, the first process that has saved and exits does not end the other
# processes.
stopping=$here/mmairl/signals.sh
[[ -e $stopping ]] || stopping=$here/../signals.sh # in an installed package
source "$stopping"
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
# shellcheck disable=SC2086 # SRUN_ARGS is a list of words
start setsid srun -p "$partition" --job-name="$job" ${gres[@]+"${gres[@]}"} \
    --ntasks="$gpus" --ntasks-per-node="$per_node" --cpus-per-task="${CPUS_PER_TASK:-${SLURM_CPUS_PER_TASK:-8}}" \
    --kill-on-bad-exit=0 --wait=120 ${SRUN_ARGS:-} \
    "$python" -u "$here/tools/train.py" "$config" --work-dir "$work_dir" --launcher slurm "$@"
exit "$code"
