#!/usr/bin/env bash
#SBATCH --job-name={{ name }} --nodes={{ nodes }} --ntasks-per-node={{ tasks }} --cpus-per-task={{ cpus }}
{% if gres %}
#SBATCH --gres={{ gres }}
{% endif %}
#SBATCH --output="{{ log }}" --open-mode=append
#SBATCH --requeue --signal=B:USR1@120
{% for option in options %}
#SBATCH {{ option }}
{% endfor %}

# Slurm signals this shell. USR1 comes before the time limit: the run saves, and the job goes back into the queue. TERM comes
# with scancel, preemption, a node set down and the time limit itself: the run saves, and the job ends, unless its time was up;
# Slurm itself requeues what it preempted.
child= told= term= passed=
trap 'told=1; pass_on' USR1 USR2
trap 'told=1 term=1; pass_on' TERM INT HUP
{% for line in environment %}
{{ line }}
{% endfor %}
{% if not gres %}
export OMP_NUM_THREADS=$((${SLURM_CPUS_PER_TASK:-{{ cpus }}} / {{ processes }}))
{% endif %}
rm -f {{ run_folder }}/failed.txt
cd {{ folder }} || {
    echo "error: $(hostname) cannot see the folder that the study was begun in; take a folder that all nodes share" >{{ run_folder }}/failed.txt
    exit 2
}

# Once, whenever there is a signal and a child. Either may come first, so each trap and each start calls this.
pass_on() {
    [[ -n $told && -n $child && -z $passed ]] || return 0
    passed=1
    kill -USR1 $child 2>/dev/null
}

# A launcher may be gone before its workers. Each of them holds a lock until it has saved.
leave_unfinished() {
    for lock in {{ run_folder }}/.lock_*; do [[ ! -e $lock ]] || flock -w 120 "$lock" true; done
    [[ -z $term || $(squeue -h -j "$SLURM_JOB_ID" -o %r) == TimeLimit ]] || exit 143
    scontrol requeue "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}"
    exit
}

# 75: the run asks to be started again. 138 and 140: USR1 or USR2 came before it listened. Whatever else it leaves with after a
# signal, it was the signal's doing.
run() {
    [[ -z $told ]] || leave_unfinished
    "$@" &
    child=$!
    pass_on
    while kill -0 $child 2>/dev/null; do wait $child; done # a trap ends `wait` early
    wait $child
    code=$?
    child=
    [[ $code -eq 0 ]] && return
    [[ $code =~ ^(75|138|140)$ || -n $told ]] && leave_unfinished
    words=$(tail -c 20000 {{ run_folder }}/log.txt | grep -E '{{ last_words }}' | tail -n 1)
    echo "${words:-exit code $code}" >{{ run_folder }}/failed.txt
    exit $code
}

{% for command in commands %}
run {{ command }}
{% endfor %}
