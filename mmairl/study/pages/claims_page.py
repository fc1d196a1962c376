"""The page of all claims of the papers: what they state, what they print, and what finished studies measured."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mmairl.config import home
from mmairl.errors import UserError
from mmairl.io import read_json
from mmairl.report.page import write_page
from mmairl.report.table import html_table, signed
from mmairl.study.claims import Claim, StudyRuns, judge, shared_claims
from mmairl.study.collect import printed_numbers
from mmairl.study.pages.study_tables import BLANK
from mmairl.study.spec import Study, read_study
from mmairl.study.statistics.claim_tests import NOT_RUN

HEADS = ('verdict', 'measured effect', 'published effect', "paper's own numbers", 'test')
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
        table = html_table(HEADS, list(map(_row, own)), words=True, head='claim')
        papers.append((paper.title, summary(own), table, untested))
    return write_page(
        out,
        'claims.html',
        title='What the papers claim',
        lead=f'{summary(entries)} Small scales test stand-ins, so their verdicts concern that scale only.',
        wide=True,
        papers=papers,
        margins={name: scale.reason for name, scale in shared_claims().scales.items()},
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


def summary(entries: Sequence[Entry]) -> str:
    """Return how many claims have which verdict.

    A claim that was tested at several scales counts once at each.
    """
    counts: Counter[str] = Counter()
    for entry in entries:
        decided = [v['verdict'] for v in entry.measured.values() if v['verdict'] != NOT_RUN]
        counts.update(decided or [NOT_RUN])
    words = ', '.join(f'{number} {verdict}' for verdict, number in counts.most_common())
    return f'{len(entries)} claims: {words}.'


def _row(entry: Entry) -> tuple[Markup, list[str | Markup]]:
    claim = entry.claim
    name = Markup('“{}”<small>{}</small>').format(claim.quote, ', '.join(claim.where))
    evidence = Markup('{}<small>{}</small>').format(claim.published, claim.evidence)
    test = Markup('<code>{}</code><small>{}</small>').format(entry.study.name, claim.reading)
    verdicts = [_verdict(scale, verdict) for scale, verdict in entry.measured.items()]
    sizes = [
        f'{effects(verdict, "measured")} ({scale})' for scale, verdict in entry.measured.items()
    ]
    return name, [
        Markup('<br>').join(verdicts) or NOT_RUN,
        Markup('<br>').join(sizes) or BLANK,
        effects(entry.published, 'published'),
        evidence,
        test,
    ]


def _verdict(scale: str, verdict: Verdict) -> Markup:
    notes = [verdict['reason']] if verdict['reason'] else []
    if seeds := verdict.get('seeds_needed'):
        notes.append(f'{seeds} seeds would decide')
    notes += [f'{own} instead of {score}' for score, own in verdict['stand_ins'].items()]
    return Markup('{} ({})<small>{}</small>').format(verdict['verdict'], scale, '; '.join(notes))


def effects(verdict: Verdict, side: str) -> str:
    """Return the range of a verdict's published or measured effects, and how many there are."""
    known = [part[side] for part in verdict['parts'] if part[side] is not None]
    if not known:
        return BLANK
    if len(known) == 1:
        return signed(known[0])
    return f'{signed(min(known))} to {signed(max(known))}, {len(known)} effects'
