#!/usr/bin/env bash
# The jobs of a study, each after those whose weights it takes.
set -euo pipefail
command -v sbatch >/dev/null || { echo "error: there is no sbatch here; run this where Slurm is" >&2; exit 2; }
submit() { # NAME, and what sbatch takes
    said=$(sbatch --parsable "${@:2}" 2>&1) || {
        echo "error: Slurm refuses the job of $1: ${said##*: }; correct the profile, and give the study's command again" >&2
        exit 2
    }
    number=${said##*$'\n'}
    number=${number%%;*}
    echo "submitted $number: $1"
}
{% for job in jobs %}
submit {{ job.name }} {% if job.before %}--dependency=afterok{% for other in job.before %}:$job_{{ other }}{% endfor %} --kill-on-invalid-dep=yes {% endif %}{{ job.script }}
job_{{ job.name }}=$number
{% endfor %}
