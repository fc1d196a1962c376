"""The page over all studies of a folder, newest first: question, progress and results."""

import time
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from statistics import mean
from typing import Any

from mmairl.errors import UserError
from mmairl.io import read_json
from mmairl.report.page import write_page
from mmairl.study.pages.study_page import verdict_words
from mmairl.study.pages.study_tables import BLANK, column_cells, columns, signed
from mmairl.study.statistics.summary import effects_of_factors, progress
from mmairl.study.statistics.verdict_words import (
    EQUIVALENT,
    HIGHER,
    INCONCLUSIVE,
    LOWER,
    current_verdict,
)

# A study.json may hold anything, such as a score of 400 digits.
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
WITH_EFFECT = (HIGHER, LOWER, EQUIVALENT, INCONCLUSIVE)


def write_studies_page(folder: str | Path) -> Path:
    """Write index.html into the folder that has the studies' folders. What is not a study is listed with the reason.

    Raises:
        UserError: If there is no such folder, or no folder in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(
            f'there is no folder {folder}; give the one that holds the folders of studies, such as work_dirs/studies',
            code='no-folder',
        )
    studies = []
    others = {}
    for path in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
        try:
            studies.append(_shown(path))
        except UNREADABLE as error:
            others[path.name] = _reason(error)
    if not studies and not others:
        raise UserError(
            f'there is no study in {folder}; give the folder that holds the folders of studies',
            code='no-studies',
        )
    return write_page(
        folder / 'index.html',
        'studies.html',
        title='Studies',
        lead=f'{len(studies)} in {folder.resolve().name}, the newest first.',
        wide=True,
        studies=sorted(studies, key=itemgetter('changed'), reverse=True),
        others=others,
    )


def _shown(folder: Path) -> dict[str, Any]:
    """Return what the page shows of a study."""
    study = read_json(folder / 'study.json')
    changed = (folder / 'study.json').stat().st_mtime
    finished, asked = progress(study)
    return dict(
        title=str(study['title']),
        question=str(study['question']),
        scale=study['scale']['name'],
        done=f'{finished} of {asked}',
        scores=_scores(study),
        folder=folder.name,
        linked=(folder / 'page.html').is_file(),
        changed=changed,
        written=time.strftime('%Y-%m-%d %H:%M', time.localtime(changed)),
    )


def _reason(error: Exception) -> str:
    code = getattr(error, 'code', '')
    if code == 'no-file':
        return 'no study.json is in it: no study, or one that has not collected yet (--collect)'
    return (
        f'its study.json is no record of a study ({code or type(error).__name__}); collect it again'
    )


def _scores(study: Mapping) -> list[str]:
    """Return the first score's label, its best row, its last row, and its verdicts."""
    if not study['metrics']:
        return [BLANK] * 4
    metric = study['metrics'][0]
    best = last = BLANK
    highest = None
    for row, cell in zip(study['rows'], column_cells(study, columns(study)[0])):
        if not cell.numbers:
            continue
        last = f'{row["name"]}: {cell.value} {cell.spread} (n = {cell.n})'
        score = mean(cell.numbers)
        if highest is None or score > highest:
            best = last
            highest = score
    return [metric['label'], best, last, _verdicts(study, metric['key']) or BLANK]


def _verdicts(study: Mapping, key: str) -> str:
    """Return the rows or effects of each verdict, with their sizes."""
    compared = study['comparisons'].get(key, ())
    if effects := effects_of_factors(study).get(key):
        compared = [effect for effect in effects if effect['asked']]
    by_verdict: dict[str, list[str]] = {}
    for comparison in compared:
        size = ''
        if current_verdict(comparison) in WITH_EFFECT:
            size = f' ({signed(comparison["estimate"], 1)})'
        by_verdict.setdefault(verdict_words(comparison), []).append(comparison['row'] + size)
    return '; '.join(f'{words}: {", ".join(names)}' for words, names in by_verdict.items())
