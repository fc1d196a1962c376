"""The words for decisions on comparisons, in result files and on pages.

A test decides `DIFFERS`, `EQUIVALENT` or `UNDECIDED`. Result files and pages use more precise words, which also state the
direction of a difference or the reason for no decision. Earlier versions of mmairl stored the decision itself. `decision_of`
and `current_verdict` accept both old and current words.
"""

from collections.abc import Mapping
from typing import Any

DECISIONS = DIFFERS, EQUIVALENT = 'differs', 'equivalent'
UNDECIDED = 'undecided'
HIGHER, LOWER = 'higher', 'lower'
OTHER_COLLAPSES = 'differs in how many runs collapse'
INCONCLUSIVE = 'inconclusive'
COLLAPSED = 'not tested (collapsed runs)'
ONE_SEED = 'not tested (one seed)'
NO_SPREAD = 'not tested (no spread)'
EARLIER = {
    UNDECIDED: INCONCLUSIVE,
    'runs collapsed: no verdict by the mean': COLLAPSED,
    'one seed: no verdict': ONE_SEED,
    'no spread: no verdict': NO_SPREAD,
}
DECIDED = {
    DIFFERS: DIFFERS,
    HIGHER: DIFFERS,
    LOWER: DIFFERS,
    OTHER_COLLAPSES: DIFFERS,
    EQUIVALENT: EQUIVALENT,
}


def verdict_of(decision: str, estimate: float | None, by_counts: bool = False) -> str:
    """Return the word by which result files and pages state a decision.

    Args:
        decision: DIFFERS, EQUIVALENT or UNDECIDED.
        estimate: The difference between the means.
        by_counts: Whether the decision comes from the exact test, which compares how many runs collapsed.
    """
    if decision == EQUIVALENT:
        return EQUIVALENT
    if decision != DIFFERS:
        return INCONCLUSIVE
    if by_counts:
        return OTHER_COLLAPSES
    return LOWER if estimate is not None and estimate < 0 else HIGHER


def decision_of(verdict: str) -> str:
    """Return the decision that a verdict word states; UNDECIDED if the word states no decision."""
    return DECIDED.get(verdict, UNDECIDED)


def current_verdict(effect: Mapping[str, Any]) -> str:
    """Return the current word for a stored verdict on a comparison or effect, which may be an old word."""
    verdict = effect['verdict']
    if verdict == DIFFERS:
        return verdict_of(DIFFERS, effect.get('estimate'), effect.get('share') is not None)
    return EARLIER.get(verdict, verdict)
