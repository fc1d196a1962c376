"""The page of all claims of the papers: quotations, published numbers, and the verdicts and effects of finished studies.

A study can run at several scales, from a cheap one to the full size of the paper. A claim has a verdict for each scale at
which its study has run.
"""

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
from mmairl.study.pages.words import BLANK, counted, tallied
from mmairl.study.spec import Study, read_study
from mmairl.study.statistics.claim_tests import NOT_RUN

Verdict = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """A claim on the page.

    Args:
        claim: The claim.
        study: The study that tests the claim.
        published: The record of the claim without any runs, which has the published effects.
        measured: For each scale at which the study has run, the record of the claim with its verdict.
    """

    claim: Claim
    study: Study
    published: Verdict
    measured: Mapping[str, Verdict]

    @property
    def tested(self) -> dict[str, Verdict]:
        """The verdicts at the scales at which the claim was tested."""
        return {scale: one for scale, one in self.measured.items() if one['verdict'] != NOT_RUN}


def write_claims_page(folder: str | Path, out: str | Path) -> Path:
    """Write one page with every claim of the papers.

    Args:
        folder: The folder that contains the folders of studies. A study without a folder there counts as not run.
        out: The path of the page.

    Returns:
        The path of the page.
    """
    entries = list(claim_entries(Path(folder)))
    papers = []
    for key, paper in shared_claims().papers.items():
        own = [entry for entry in entries if entry.claim.paper == key]
        untestable = [claim for claim in shared_claims().untested if claim.paper == key]
        papers.append((paper.title, claims_summary(own), own, untestable))
    return write_page(
        out,
        'claims.html',
        title='Claims of the papers',
        lead=f'{claims_summary(entries)} A verdict applies only to the scale of its runs. At small scales, studies measure '
        'cheaper scores, called stand-ins, instead of expensive scores.',
        wide=True,
        papers=papers,
        scales=shared_claims().scales,
        effects=effects,
        effect_name=effect_name,
        claimed_effects=claimed_effects,
        seed_counts=seed_counts,
        span=span,
    )


def claim_entries(folder: Path) -> Iterator[Entry]:
    """Yield every claim of the studies that come with mmairl, with the verdicts stored in a folder of studies."""
    measured = _measured(folder)
    nothing = StudyRuns(dict(rows=[], metrics=[]), 'in1k')
    paths = [*home().glob('configs/studies/[a-z]*.yaml'), *home().glob('projects/*/studies/*.yaml')]
    for path in sorted(paths):
        study = read_study(path)
        published = judge(study.claims, nothing, printed_numbers(study)) if study.claims else []
        for claim, known in zip(study.claims, published):
            yield Entry(claim, study, known, measured.get((study.name, claim.name), {}))


def _measured(folder: Path) -> dict[tuple[str, str], dict[str, Verdict]]:
    """Return the verdicts that the records of studies in a folder contain.

    The keys are the names of a study and of a claim. The values are dictionaries from the name of a scale to the verdict.
    """
    found: dict[tuple[str, str], dict[str, Verdict]] = {}
    for path in sorted(folder.glob('*/study.json')):
        try:
            record = read_json(path, dict)
            for verdict in record.get('claims', ()):
                scales = found.setdefault((record['name'], verdict['name']), {})
                scales[record['scale']['name']] = verdict
        except (UserError, LookupError, TypeError, AttributeError):
            # Unreadable records are reported on the page of all studies.
            continue
    return found


def claims_summary(entries: Sequence[Entry]) -> str:
    """Return the number of claims, the number of tested claims, and the number of each verdict, as text.

    A claim has a verdict for each scale at which it was tested, so there may be more verdicts than tested claims.
    """
    verdicts = [verdict['verdict'] for entry in entries for verdict in entry.tested.values()]
    count = counted(len(entries), 'claim')
    if not verdicts:
        return f'{count}, none tested yet.'
    tested = sum(bool(entry.tested) for entry in entries)
    return f'{count}, {tested} tested. Verdicts: {", ".join(tallied(verdicts))}.'


def effects(verdict: Verdict, side: str) -> str:
    """Return the range of the published or measured effects behind a verdict, and the number of these effects, as text."""
    known = [part[side] for part in verdict['parts'] if part[side] is not None]
    if not known:
        return BLANK
    if len(known) == 1:
        return shown(known[0])
    return f'{shown(min(known))} to {shown(max(known))}, {len(known)} effects'


def shown(effect: float) -> str:
    """Return an effect with one decimal, or with three decimals if it would otherwise be rounded to zero."""
    return signed(effect, 3 if 0.0005 < abs(effect) < 0.05 else 1)


def span(part: Mapping[str, Any]) -> str:
    """Return the 95 % interval of an effect as text; '' if there is none."""
    low, high = part.get('low'), part.get('high')
    return '' if low is None else f'{shown(low)} to {shown(high)}'


def effect_name(part: Mapping[str, Any]) -> str:
    """Return how an effect is computed from scores, e.g. '“MoCo v2+” − “BYOL”, linear'."""
    if 'name' in part:
        return part['name']
    scores = dict.fromkeys(score for by_score in part['weights'].values() for score in by_score)
    terms = []
    for row, by_score in part['weights'].items():
        for score, weight in by_score.items():
            factor = '' if abs(weight) == 1 else f'{abs(weight):g} × '
            of = f' ({score})' if len(scores) > 1 else ''
            terms.append(f'{"−" if weight < 0 else "+"} {factor}“{row}”{of}')
    if len(terms) == 1:
        terms.append('compared with the published score')
    score = '' if len(scores) > 1 else f', {next(iter(scores))}'
    return ' '.join(terms).removeprefix('+ ') + score


def claimed_effects(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return the ranges in which the effects lie according to the claim, as text."""
    return ', '.join(dict.fromkeys(map(_claimed_effect, parts))) or BLANK


def _claimed_effect(part: Mapping[str, Any]) -> str:
    if part['margin'] is not None:
        return f'within ±{part["margin"]:g}'
    return f'above {part["least"]:+g}'.replace('-', '−') if part['least'] else 'above 0'


def seed_counts(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return the numbers of seeds per row behind a claim's effects, as text.

    The text is a dash if no effect has this number. An effect has none if it could not be tested, if it is about fitted
    lines, or if an earlier version of mmairl wrote the record.
    """
    counts = {part['seeds'] for part in parts if part.get('seeds')}
    return ', '.join(map(str, sorted(counts))) or BLANK
