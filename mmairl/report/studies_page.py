"""One page over all studies of a folder, the newest first: what was asked, how far it is, what came out."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from mmairl.errors import UserError
from mmairl.report.page import Page
from mmairl.report.study_page import progress, verdict_words
from mmairl.report.study_tables import columns, signed, table_lines

WITH_EFFECT = ('differs', 'equivalent', 'undecided')


def write_studies_page(folder: str | Path) -> Path:
    """index.html in the folder that holds the studies' folders; of what is no study there is a sentence.

    >>> write_studies_page('work_dirs/studies')  # doctest: +SKIP
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(
            f'there is no folder {folder}; give the one that holds the folders of studies, such as work_dirs/studies'
        )
    found, others = [], []
    for path in sorted(of for of in folder.iterdir() if of.is_dir()):
        try:
            record = path / 'study.json'
            found.append((record.stat().st_mtime, _section(path, json.loads(record.read_text()))))
        except FileNotFoundError:
            others.append(
                (path.name, 'no study.json is in it: no study, or one that has not collected yet (--collect)')
            )
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
        ) as error:  # whatever else a foreign file holds
            others.append(
                (path.name, f'its study.json is no record of a study ({type(error).__name__}); collect it again')
            )
    page = Page('Studies', f'{len(found)} in {folder.resolve().name}, the newest first.')
    for changed, section in sorted(found, key=lambda of: of[0], reverse=True):
        page.add(**section, caption=f'Written {time.strftime("%Y-%m-%d %H:%M", time.localtime(changed))}.')
    if others:
        lines = Markup('').join(Markup('<li>{}: {}.</li>').format(*of) for of in others)
        page.add(
            'Not shown', 'These folders hold nothing that can be read as a study.', Markup('<ul>{}</ul>').format(lines)
        )
    return page.write(folder / 'index.html')


def _section(path: Path, study: Mapping) -> dict[str, Any]:
    """A study's heading with its link, its question, and its facts as a list."""
    title, facts = str(study['title']), {}
    finished, asked = progress(study)
    facts['scale'] = study['scale']['name']
    facts['runs'] = f'{finished} of {asked} are finished'
    if study['metrics']:
        facts.update(_scores(study))
    if (path / 'page.html').is_file():
        heading = Markup('<a href="./{}/page.html">{}</a>').format(quote(path.name), title)
    else:
        heading = Markup('{} <span class="quiet">(no page.html in {})</span>').format(title, path.name)
    lines = Markup('').join(Markup('<dt>{}</dt><dd>{}</dd>').format(*of) for of in facts.items())
    return dict(heading=heading, text=str(study['question']), figure=Markup('<dl class="facts">{}</dl>').format(lines))


def _scores(study: Mapping) -> dict[str, str]:
    """The best and the last row by the first score, and its verdicts."""
    metric = study['metrics'][0]
    place = [(column.kind, column.key) for column in columns(study)].index(('measured', metric['key']))
    rows = [(of.row['name'], cell) for of in table_lines(study) if (cell := of.cells[place]).numbers]
    facts: dict[str, str] = {}
    if rows:
        best, last = max(rows, key=lambda of: sum(of[1].numbers) / len(of[1].numbers)), rows[-1]
        said = {name: f'{name}: {cell.value} {cell.spread} (n = {cell.n})' for name, cell in (best, last)}
        facts[f'{metric["label"]}, best row'] = said[best[0]]
        facts[f'{metric["label"]}, last row'] = said[last[0]]
    by_verdict: dict[str, list[str]] = {}
    compared = study['comparisons'].get(metric['key'], ())
    if crossed := study.get('attribution', {}).get(metric['key']):
        compared = [{**of, 'row': of['name'], 'margin': crossed['margin']} for of in crossed['effects'] if of['asked']]
    for of in compared:
        effect = f' ({signed(of["estimate"], 1)})' if of['verdict'] in WITH_EFFECT else ''
        by_verdict.setdefault(verdict_words(of), []).append(of['row'] + effect)
    if by_verdict:
        facts['verdicts'] = '; '.join(f'{words}: {", ".join(names)}' for words, names in by_verdict.items())
    return facts
