"""The page that lists all studies in a folder, newest first, with their answers, verdicts, progress and training times."""

import time
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from mmairl.errors import UserError
from mmairl.io import read_json
from mmairl.report.page import write_page
from mmairl.study.pages.answer import answer, problems
from mmairl.study.pages.evidence import trained_runs
from mmairl.study.pages.findings import all_findings
from mmairl.study.pages.words import BLANK, counted, duration, tallied
from mmairl.study.statistics.summary import progress

# Any of these errors may occur when an untrusted study.json is read, for example if a score has 400 digits.
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)


def write_studies_page(folder: str | Path) -> Path:
    """Write index.html, which lists all studies in a folder, into this folder.

    If a subfolder is not a readable study, the page states the reason.

    Args:
        folder: The folder that contains the folders of studies.

    Returns:
        The path of the page.

    Raises:
        UserError: If the folder does not exist or has no subfolders.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(
            f"--index: the folder does not exist ('{folder}'); give the folder that contains the folders of studies, such as "
            'work_dirs/studies',
            code='no-folder',
        )
    studies = []
    others = {}
    for path in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
        try:
            studies.append(_entry(path))
        except UNREADABLE as error:
            others[path.name] = _reason(error)
    if not studies and not others:
        raise UserError(
            f"--index: the folder contains no study ('{folder}'); give the folder that contains the folders of studies",
            code='no-studies',
        )
    return write_page(
        folder / 'index.html',
        'studies.html',
        title='Studies',
        lead=_lead(studies),
        wide=True,
        studies=sorted(studies, key=itemgetter('changed'), reverse=True),
        others=others,
    )


def _lead(studies: Sequence[Mapping[str, Any]]) -> str:
    finished = 0
    for study in studies:
        done, asked = study['progress']
        finished += done == asked
    problems = sum(bool(study['problems']) for study in studies)
    count = counted(len(studies), 'study', 'studies')
    return f'{count}: {finished} finished, {problems} with problems. Newest first.'


def _entry(folder: Path) -> dict[str, Any]:
    """Return the values of a study's line in the list."""
    study = read_json(folder / 'study.json')
    changed = (folder / 'study.json').stat().st_mtime
    found = all_findings(study)
    seconds = [run['seconds'] for run in trained_runs(study) if run.get('seconds')]
    return dict(
        changed=changed,
        written=time.strftime('%Y-%m-%d %H:%M', time.localtime(changed)),
        folder=folder.name,
        has_page=(folder / 'page.html').is_file(),
        title=study['title'],
        question=study['question'],
        scale=study['scale']['name'],
        answer=answer(study)[0],
        verdicts=tallied(one.verdict for one in found[0].all) if found else [BLANK],
        problems=len(problems(study)),
        progress=progress(study),
        training=duration(sum(seconds)),
    )


def _reason(error: Exception) -> str:
    code = getattr(error, 'code', '')
    if code == 'no-file':
        return (
            'no study.json; the folder has no study, or the results of its study are not collected yet (mmairl study ... '
            '--collect)'
        )
    return (
        f'study.json is not the record of a study ({code or type(error).__name__}); run mmairl study ... --collect to write it '
        'again'
    )
