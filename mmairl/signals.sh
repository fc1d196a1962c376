# Sourced by the scripts that start a run under Slurm: this shell is told to stop, its run saves, and the job goes on or ends.
#
# USR1 comes before the time limit: the run saves, and the job goes back into the queue. TERM comes with scancel, preemption, a
# node set down and the time limit itself: the run saves, and the job ends, unless its time was up; Slurm itself requeues what
# it preempted.
told= term= child= passed=
trap 'told=1; pass_on' USR1 USR2
trap 'told=1 term=1; pass_on' TERM INT HUP

# Once, whenever there is a signal and a child. Either may come first, so each trap and each start calls this. As USR1, upon
# which a run saves: srun kills its tasks at once on TERM.
pass_on() {
    [[ -n $told && -n $child && -z $passed ]] || return 0
    passed=1
    kill -USR1 "$child" 2>/dev/null || true
}

# start COMMAND...: wait for its end. `code` is what it leaves with, and 75 where it is to be started again: it says so itself,
# USR1 (138) or USR2 (140) came before it listened, or it was told to stop and has not finished.
start() {
    code=75
    [[ -z $told ]] || return 0
    "$@" &
    child=$!
    pass_on
    while kill -0 "$child" 2>/dev/null; do wait "$child" || true; done # a trap ends `wait` early
    wait "$child" && code=0 || code=$?
    child=
    [[ $code != 138 && $code != 140 && (-z $told || $code == 0) ]] || code=75
}

# The same, and three times more where a signal has killed it, as the kernel does where memory ends: it resumes by itself.
start_again() {
    local try
    for try in 1 2 3 4; do
        start "$@"
        [[ $code -gt 128 ]] || return 0
        export MMAIRL_STARTED_AGAIN=$try
    done
}

# go_back FOLDER: put the job back into the queue, one task of an array by its own number, or end it if it was cancelled.
# A launcher may be gone before its workers; each of them holds a lock in the run's folder until it has saved.
go_back() {
    local lock id="${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}"
    for lock in "$1"/.lock_*; do [[ ! -e $lock ]] || flock -w 120 "$lock" true; done
    if [[ -n $term && $(squeue -h -j "$SLURM_JOB_ID" -o %r) != TimeLimit ]]; then
        echo "job $id was told to end"
        exit 143
    fi
    echo "job $id goes back into the queue"
    scontrol requeue "$id"
    exit 75
}
