"""The page over all studies of a folder, newest first: answer, verdicts, cost and progress."""

import time
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from mmairl.errors import UserError
from mmairl.io import read_json
from mmairl.report.page import write_page
from mmairl.report.table import html_table
from mmairl.study.pages.answer import answer, problems
from mmairl.study.pages.evidence import trained_runs
from mmairl.study.pages.findings import all_findings
from mmairl.study.pages.words import BLANK, duration, tallied
from mmairl.study.statistics.summary import progress

# A study.json may hold anything, such as a score of 400 digits.
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
HEADS = ('answer', 'verdicts', 'problems', 'runs', 'training', 'written')


def write_studies_page(folder: str | Path) -> Path:
    """Write index.html into the folder that has the studies' folders; anything else there is listed with the reason.

    Raises:
        UserError: If there is no such folder, or no folder in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(
            f'--index: there is no folder {folder}; give the one that holds the folders of studies, such as '
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
            f'--index: there is no study in {folder}; give the folder that holds the folders of studies',
            code='no-studies',
        )
    rows = [row for _, row in sorted(studies, key=itemgetter(0), reverse=True)]
    return write_page(
        folder / 'index.html',
        'studies.html',
        title='Studies',
        lead=f'{len(studies)} in {folder.resolve().name}, the newest first.',
        wide=True,
        table=html_table(HEADS, rows, words=True, head='study') if rows else '',
        others=others,
    )


def _entry(folder: Path) -> tuple[float, tuple[Markup, list[str | Markup]]]:
    """Return when a study was written, and its row of the table."""
    study = read_json(folder / 'study.json')
    changed = (folder / 'study.json').stat().st_mtime
    finished, asked = progress(study)
    seconds = sum(run['seconds'] for run in trained_runs(study) if run.get('seconds'))
    warnings = len(problems(study))
    cells = [
        answer(study)[0],
        _verdicts(study),
        Markup('<span class="bad">✕ {}</span>').format(warnings) if warnings else 'none',
        f'{finished} of {asked}',
        duration(seconds),
        time.strftime('%Y-%m-%d %H:%M', time.localtime(changed)),
    ]
    return changed, (_name(study, folder), cells)


def _name(study: Mapping[str, Any], folder: Path) -> Markup:
    linked = (folder / 'page.html').is_file()
    missing = '' if linked else f'; no page.html in {folder.name}'
    about = f'{study["question"]} ({study["scale"]["name"]} scale{missing})'
    title = Markup('{}').format(study['title'])
    if linked:
        title = Markup('<a href="./{}/page.html">{}</a>').format(quote(folder.name), title)
    return title + Markup('<small>{}</small>').format(about)


def _reason(error: Exception) -> str:
    code = getattr(error, 'code', '')
    if code == 'no-file':
        return 'no study.json; not a study, or not collected yet (--collect)'
    return f'study.json is not the record of a study ({code or type(error).__name__}); collect it again'


def _verdicts(study: Mapping[str, Any]) -> str:
    """Return how many comparisons by the primary score have each verdict."""
    found = all_findings(study)
    return ', '.join(tallied(one.verdict for one in found[0].all)) if found else BLANK
