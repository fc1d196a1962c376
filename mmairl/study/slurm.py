"""A study's runs as Slurm jobs: a script each, and one that submits them in their order."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Template

from mmairl.errors import UserError
from mmairl.files import write_text
from mmairl.study.runs import Run, commands

JOB = Template(Path(__file__).with_name('job.sh').read_text(), trim_blocks=True, keep_trailing_newline=True)


def slurm_jobs(runs: Sequence[Run], devices: int, out: Path, partition: str, gpus: bool, options: str = '') -> Path:
    """A job script for each run that is not done, and the path of the script that submits them all.

    A run that takes the weights of others is submitted after them and waits for them. `options` are more of sbatch's.
    """
    folder = out.absolute() / 'jobs'
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob('*.sh'):
        old.unlink()
    names: dict[Path, str] = {}
    submit = ['#!/usr/bin/env bash', 'set -euo pipefail']
    waiting = [run for run in runs if not run.done]
    while waiting:
        # A run comes once all that it needs is done or submitted.
        run = next(run for run in waiting if not {other.folder for other in waiting} & set(run.needs))
        waiting.remove(run)
        script = folder / f'{run.row.slug}_seed_{run.seed}.sh'
        write_text(script, job(run, devices, partition, gpus, options))
        names[run.folder] = f'job_{len(names)}'
        before = ''.join(f':${names[needed]}' for needed in run.needs if needed in names)
        after = f'--dependency=afterok{before} --kill-on-invalid-dep=yes ' if before else ''
        submit.append(f'{names[run.folder]}=$(sbatch --parsable {after}{shlex.quote(str(script))})')
        submit.append(
            f'{names[run.folder]}=${{{names[run.folder]}%%;*}}; echo "submitted ${names[run.folder]}: {script.stem}"'
        )
    path = write_text(folder / 'submit.sh', '\n'.join(submit) + '\n')
    path.chmod(0o755)
    return path


def job(run: Run, devices: int, partition: str, gpus: bool, options: str = '') -> str:
    """The script of one run."""
    log = str(run.folder.absolute() / 'log.txt')
    if '"' in log or '\n' in log:
        raise UserError(f'Slurm cannot write its log to {log}; give an --out without quotes and line breaks')
    return JOB.render(
        partition=partition,
        name=f'{run.row.slug}_{run.seed}',
        devices=devices,
        gpus=gpus,
        log=log.replace('%', '%%'),  # a % begins a pattern of Slurm's
        options=[options] if options else [],
        folder=shlex.quote(os.getcwd()),
        run_folder=shlex.quote(str(run.folder.absolute())),
        commands=[shlex.join(command) for command in commands(run, devices)],
    )
