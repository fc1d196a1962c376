"""The page of all claims of the papers: what they state, what they print, and what finished studies measured."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmairl.config import home
from mmairl.errors import UserError
from mmairl.io import read_json
from mmairl.report.page import write_page
from mmairl.report.table import signed
from mmairl.study.claims import Claim, StudyRuns, judge, shared_claims
from mmairl.study.collect import printed_numbers
from mmairl.study.pages.words import BLANK, tallied
from mmairl.study.spec import Study, read_study
from mmairl.study.statistics.claim_tests import NOT_RUN

Verdict = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """A claim with its study, the verdict on the published numbers alone, and the verdict of each finished scale."""

    claim: Claim
    study: Study
    published: Verdict
    measured: Mapping[str, Verdict]


def write_claims_page(folder: str | Path, out: str | Path) -> Path:
    """Write one page with every claim of the papers.

    Args:
        folder: The folder that holds the folders of studies. Studies that are missing there have not run.
        out: The page.

    Returns:
        The path of the page.
    """
    entries = list(claim_entries(Path(folder)))
    papers = []
    for key, paper in shared_claims().papers.items():
        own = [entry for entry in entries if entry.claim.paper == key]
        untested = [claim for claim in shared_claims().untested if claim.paper == key]
        papers.append((paper.title, claims_summary(own), own, untested))
    return write_page(
        out,
        'claims.html',
        title='Claims of the papers',
        lead=f'{claims_summary(entries)} At small scales, cheaper scores stand in for expensive ones, so a '
        'verdict applies to its own scale only.',
        wide=True,
        papers=papers,
        scales=shared_claims().scales,
        effects=effects,
    )


def claim_entries(folder: Path) -> Iterator[Entry]:
    """Yield every claim of the studies that come with mmairl, with the verdicts found in a folder of studies."""
    measured = _measured(folder)
    nothing = StudyRuns(dict(rows=[], metrics=[]), 'in1k')
    paths = [*home().glob('configs/studies/[a-z]*.yaml'), *home().glob('projects/*/studies/*.yaml')]
    for path in sorted(paths):
        study = read_study(path)
        published = judge(study.claims, nothing, printed_numbers(study)) if study.claims else []
        for claim, known in zip(study.claims, published):
            yield Entry(claim, study, known, measured.get((study.name, claim.name), {}))


def _measured(folder: Path) -> dict[tuple[str, str], dict[str, Verdict]]:
    """Return the verdicts in the records of a folder, by study and claim, and then by scale."""
    found: dict[tuple[str, str], dict[str, Verdict]] = {}
    for path in sorted(folder.glob('*/study.json')):
        try:
            record = read_json(path, dict)
            for verdict in record.get('claims', ()):
                scales = found.setdefault((record['name'], verdict['name']), {})
                scales[record['scale']['name']] = verdict
        except (UserError, LookupError, TypeError, AttributeError):
            continue  # the page of all studies names unreadable records
    return found


def claims_summary(entries: Sequence[Entry]) -> str:
    """Return how many claims have which verdict.

    A claim that was tested at several scales counts once at each.
    """
    verdicts: list[str] = []
    for entry in entries:
        tested = [v['verdict'] for v in entry.measured.values() if v['verdict'] != NOT_RUN]
        verdicts += tested or [NOT_RUN]
    return f'{len(entries)} claims: {", ".join(tallied(verdicts))}.'


def effects(verdict: Verdict, side: str) -> str:
    """Return the range of a verdict's published or measured effects, and how many there are."""
    known = [part[side] for part in verdict['parts'] if part[side] is not None]
    if not known:
        return BLANK
    if len(known) == 1:
        return signed(known[0])
    return f'{signed(min(known))} to {signed(max(known))}, {len(known)} effects'
