#!/usr/bin/env bash
# tools/dist_train.sh CONFIG N [train.py's options]: N processes, on N GPUs or, where there is none, on the CPU.
# MAX_RESTARTS=3 starts a run that lost a process, or was told to stop, again from its newest checkpoint.
# Several machines: set NNODES, NODE_RANK, MASTER_ADDR and PORT on each, as in OpenMMLab.
set -euo pipefail
[[ $# -ge 2 ]] || { echo "usage: tools/dist_train.sh CONFIG N [options]" >&2; exit 2; }
config=$1 processes=$2
shift 2
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$([[ -x $here/.venv/bin/python ]] && echo "$here/.venv/bin/python" || echo python)}
# One machine needs no agreed port: torchrun finds a free one, so two runs beside each other do not collide.
if [[ ${NNODES:-1} == 1 && -z ${PORT:-} ]]; then
    where=(--standalone)
else
    where=(--nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" --master_addr="${MASTER_ADDR:-127.0.0.1}"
        --master_port="${PORT:-29500}")
fi
PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m torch.distributed.run "${where[@]}" \
    --nproc_per_node="$processes" --max-restarts="${MAX_RESTARTS:-0}" \
    --signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 "$here/tools/train.py" "$config" --launcher pytorch "$@"
