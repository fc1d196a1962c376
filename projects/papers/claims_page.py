"""The page of all claims: the words, the paper's own numbers, what was measured at which scale, and the verdict."""

from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import FileSystemLoader
from markupsafe import Markup

from mmairl.config import home, load_config
from mmairl.io import read_json, write_text
from mmairl.report.page import ENVIRONMENT, STYLE
from mmairl.report.table import signed
from mmairl.study.fairness import changed
from mmairl.study.statistics.compare import are_paired, collapsed_seeds, level_of, scores_by_row
from mmairl.study.study import Study, read_study
from projects.papers.claims import NOT_RUN, Claim, Part, Runs, judge, papers, published_verdict

# Short names of the papers for the filter.
SHORT = dict(revisit_airl='Huang et al. 2022', byol='BYOL', msbreg='MSBReg')
HERE = Path(__file__).parent
NOT_TESTED = 'not tested'
VERDICTS = ('supported', 'contradicted', 'inconclusive', NOT_TESTED)
NUMBERS = ('holds', 'thin', 'partly', 'contradicts', 'drawn only', 'none')


@dataclass(frozen=True)
class Entry:
    """A claim on the page.

    Args:
        claim: The claim.
        numbers: What the paper's own numbers state, as one of NUMBERS.
        published: The published effect of each part.
        planned: The number of seeds that the study plans.
        measured: The verdict and its record at each scale at which the study has run.
    """

    claim: Claim
    numbers: str
    published: Sequence[tuple[Part, float]]
    planned: int
    measured: Mapping[str, Mapping[str, Any]]

    @property
    def verdicts(self) -> set[str]:
        return {one['verdict'] for one in self.measured.values()} or {NOT_TESTED}

    @property
    def words(self) -> str:
        """The range of the published effects as text."""
        effects = sorted({shown(effect) for _, effect in self.published}, key=len)
        if len(self.published) < 2 or len(effects) < 2:
            return ', '.join(effects)
        values = [effect for _, effect in self.published]
        return f'{shown(min(values))} to {shown(max(values))}'


def write_claims_page(folder: Path, out: Path) -> Path:
    """Write the page, with the verdicts of the studies whose folders are in `folder`."""
    entries = {paper: list(entries_of(paper, folder)) for paper in papers()}
    environment = ENVIRONMENT.overlay(
        loader=FileSystemLoader([HERE, *ENVIRONMENT.loader.searchpath])
    )
    filters = dict(paper=[*entries], verdict=VERDICTS, numbers=NUMBERS)
    style = STYLE + (HERE / 'claims.css').read_text('utf-8') + ''.join(rules(filters))
    text = environment.get_template('claims.html').render(
        title='Claims of the papers',
        lead=summary([entry for group in entries.values() for entry in group]),
        style=Markup(style),
        digest=b64encode(sha256(style.encode()).digest()).decode(),
        papers=papers(),
        entries=entries,
        filters=filters,
        short=SHORT,
        shown=shown,
        summary=summary,
    )
    return write_text(out, text)


def rules(filters: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the style rules by which a selected radio button hides the claims of other classes."""
    for name, values in filters.items():
        for value in values:
            word = value.replace(' ', '-')
            shown_part = 'section' if name == 'paper' else '.claim'
            yield f'main:has(#{name}-{word}:checked) {shown_part}[class*={name}-]:not(.{name}-{word}){{display:none}}\n'


def summary(entries: Sequence[Entry]) -> str:
    """Return the number of claims and of each verdict as text."""
    counts = Counter(verdict for entry in entries for verdict in entry.verdicts)
    against = sum(entry.numbers in ('partly', 'contradicts') for entry in entries)
    verdicts = ', '.join(f'{counts[verdict]} {verdict}' for verdict in VERDICTS if counts[verdict])
    return f'{len(entries)} claims: {verdicts}. The printed numbers speak against all or part of {against}.'


def shown(effect: float) -> str:
    """Return an effect with one decimal, or with three decimals if one would hide it."""
    return signed(effect, 3 if 0.0005 < abs(effect) < 0.05 else 1)


def entries_of(paper: str, folder: Path) -> Iterator[Entry]:
    """Yield the claims of a paper in the order of its file."""
    claims = papers()[paper].claims
    records = read_records(folder)
    studies = {claim.study: study_of(claim.study) for claim in claims if claim.test}
    judged: dict[str, dict[str, Mapping[str, Any]]] = {claim.name: {} for claim in claims}
    for name, study in studies.items():
        own = [claim for claim in claims if claim.test and claim.study == name]
        for record in records.get(study.name, []):
            runs = runs_of(record, study)
            for verdict in judge(own, runs):
                if verdict['verdict'] != NOT_RUN:
                    judged[verdict['claim'].name][runs.scale] = verdict
    for claim in claims:
        study = studies.get(claim.study)
        printed = partial(printed_score, study)
        known = []
        for part in claim.test.parts(Runs({}).margin) if claim.test else ():
            effect = part.effect(printed)
            if effect is not None:
                known.append((part, effect))
        planned = len(study.seeds) if study else 0
        yield Entry(claim, published_verdict(claim, printed), known, planned, judged[claim.name])


def study_of(name: str) -> Study:
    """Return a study by its name in `configs/studies`, or by its path from the root of the repository."""
    return read_study(home() / (f'{name}.yaml' if '/' in name else f'configs/studies/{name}.yaml'))


def printed_score(study: Study | None, row: str, score: str) -> float | None:
    """Return the number that the paper prints for a row of a study and a score, or None."""
    rows = {one.name: one.published for one in study.rows} if study else {}
    return rows.get(row, {}).get(score)


def read_records(folder: Path) -> dict[str, list[Mapping[str, Any]]]:
    """Return the records of each study by its name: for each scale, the one with the most seeds."""
    largest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for path in sorted(folder.glob('**/study.json')):
        record = read_json(path, dict)
        known = largest.setdefault((record['name'], record['scale']['name']), record)
        if len(record['seeds']) > len(known['seeds']):
            largest[record['name'], record['scale']['name']] = record
    records: dict[str, list[Mapping[str, Any]]] = {}
    for (name, _), record in largest.items():
        records.setdefault(name, []).append(record)
    return records


def runs_of(record: Mapping[str, Any], study: Study) -> Runs:
    """Return the runs of a study's record."""
    scores: dict[str, dict[str, dict[int, float]]] = {row['name']: {} for row in record['rows']}
    for metric in record['metrics']:
        for row, values in scores_by_row(record, metric['key']).items():
            if values:
                scores[row][metric['key']] = values
    return Runs(
        scores,
        scale=record['scale']['name'],
        collapsed=collapsed_seeds(record),
        paired=partial(are_paired, record),
        differences=partial(differing_keys, study),
        level=level_of(record),
    )


def differing_keys(study: Study, one: str, other: str) -> list[str]:
    """Return the keys in which the full-size configs of two rows differ."""
    rows = {row.name: row for row in study.rows}
    configs = []
    for name in (one, other):
        cfg = load_config(str(home() / 'configs' / rows[name].config))
        cfg.merge_from_dict(dict(rows[name].options))
        configs.append(cfg)
    return changed(*configs)
