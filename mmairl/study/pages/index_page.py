"""One page over all studies of a folder, the newest first: what was asked, how far it is, what came out."""

import time
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from statistics import mean

from mmairl.errors import UserError
from mmairl.io import read_json
from mmairl.report.page import write_page
from mmairl.study.pages.study_page import verdict_words
from mmairl.study.pages.study_tables import column_cells, columns, signed
from mmairl.study.statistics.summary import effects_of_factors, progress
from mmairl.study.statistics.verdict_words import EQUIVALENT, HIGHER, INCONCLUSIVE, LOWER, current_verdict

# A study.json may hold anything, such as a score of 400 digits.
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
WITH_EFFECT = (HIGHER, LOWER, EQUIVALENT, INCONCLUSIVE)


def write_studies_page(folder: str | Path) -> Path:
    """index.html in the folder that holds the studies' folders; of what is no study there is a sentence."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(
            f'there is no folder {folder}; give the one that holds the folders of studies, such as work_dirs/studies'
        )
    studies, others = [], {}
    for path in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
        try:
            study = read_json(path / 'study.json')
            changed = (path / 'study.json').stat().st_mtime
            shown = {name: str(study[name]) for name in ('title', 'question')}
            shown |= dict(scale=study['scale']['name'], done='{} of {}'.format(*progress(study)), scores=_scores(study))
            written = time.strftime('%Y-%m-%d %H:%M', time.localtime(changed))
            linked = (path / 'page.html').is_file()
            studies.append(dict(shown, folder=path.name, linked=linked, changed=changed, written=written))
        except UNREADABLE as error:
            if getattr(error, 'code', '') == 'no-file':
                others[path.name] = 'no study.json is in it: no study, or one that has not collected yet (--collect)'
                continue
            reason = getattr(error, 'code', '') or type(error).__name__
            others[path.name] = f'its study.json is no record of a study ({reason}); collect it again'
    if not studies and not others:
        raise UserError(f'there is no study in {folder}; give the folder that holds the folders of studies')
    return write_page(
        folder / 'index.html',
        'studies.html',
        title='Studies',
        lead=f'{len(studies)} in {folder.resolve().name}, the newest first.',
        wide=True,
        studies=sorted(studies, key=itemgetter('changed'), reverse=True),
        others=others,
    )


def _scores(study: Mapping) -> list[str]:
    """The first score, its best and its last row, and its verdicts."""
    if not study['metrics']:
        return ['—'] * 4
    metric = study['metrics'][0]
    cells = zip(study['rows'], column_cells(study, columns(study)[0]))
    rows = [(row['name'], cell) for row, cell in cells if cell.numbers]
    said = [f'{name}: {cell.value} {cell.spread} (n = {cell.n})' for name, cell in rows]
    best = max(range(len(rows)), key=lambda row: mean(rows[row][1].numbers), default=None)
    by_verdict: dict[str, list[str]] = {}
    compared = study['comparisons'].get(metric['key'], ())
    if crossed := effects_of_factors(study).get(metric['key']):
        compared = [effect for effect in crossed if effect['asked']]
    for comparison in compared:
        in_points = current_verdict(comparison) in WITH_EFFECT and comparison.get('share') is None
        effect = f' ({signed(comparison["estimate"], 1)})' if in_points else ''
        by_verdict.setdefault(verdict_words(comparison), []).append(comparison['row'] + effect)
    verdicts = '; '.join(f'{words}: {", ".join(names)}' for words, names in by_verdict.items())
    return [metric['label'], *((said[best], said[-1]) if said else ('—', '—')), verdicts or '—']
