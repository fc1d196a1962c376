"""Functions that format words and numbers on study pages. Most of them are also filters of the templates (`FILTERS`)."""

from collections import Counter
from collections.abc import Iterable

from markupsafe import Markup
from matplotlib.ticker import EngFormatter

from mmairl.report.page import ENVIRONMENT, fill
from mmairl.report.table import counted, signed
from mmairl.study.statistics.verdict_words import OTHER_COLLAPSES

BLANK = '—'
# By default, a page lists at most this many sentences or names of the same kind.
MOST_LISTED = 3
FLOPS = EngFormatter('FLOP')


def sentences(template: str, **values: object) -> list[Markup]:
    """Fill in a template and return its paragraphs without their tags."""
    paragraphs = fill(template, **values).split('<p>')
    return [Markup(paragraph.strip()) for paragraph in paragraphs[1:]]


def quoted(name: str) -> Markup:
    return Markup('<bdi>“{}”</bdi>').format(name)


def coded(key: str) -> Markup:
    return Markup('<code>{}</code>').format(key)


def enumerated(parts: Iterable[str], most: int = MOST_LISTED) -> Markup:
    """Return 'a', 'a and b', or 'a, b, c and 2 more'."""
    parts = list(parts)
    more = len(parts) - most
    *rest, last = [*parts[:most], f'{more} more'] if more > 0 else parts
    joined = Markup(', ').join(rest)
    return Markup('{} and {}').format(joined, last) if rest else Markup('{}').format(last)


def phrased(items: Iterable[object], form: str) -> list[Markup]:
    """Return a phrase for each item.

    Args:
        items: The items.
        form: The phrase as HTML, with fields of the item in braces, such as {0.name} or {0[name]}.
    """
    return [Markup(form).format(item) for item in items]


def tallied(verdicts: Iterable[str], verb: bool = False) -> list[str]:
    """Return how often each verdict occurs, the most frequent verdict first, such as '2 inconclusive'.

    Args:
        verdicts: The verdicts.
        verb: Whether to add a verb, such as in '2 are inconclusive'.
    """
    phrases = []
    for verdict, number in Counter(verdicts).most_common():
        if verb and verdict == OTHER_COLLAPSES:
            is_a_difference = 'is a difference in' if number == 1 else 'are differences in'
            verdict = verdict.replace('differs in', is_a_difference)
        elif verb:
            verdict = f'{"is" if number == 1 else "are"} {verdict}'
        phrases.append(f'{number} {verdict}')
    return phrases


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours, e.g. '2.0 h'."""
    if seconds < 120:
        return f'{seconds:.0f} s'
    return f'{seconds / 60:.0f} min' if seconds < 7200 else f'{seconds / 3600:.1f} h'


def decimals(value: float | None, form: str = '.2f') -> str:
    return BLANK if value is None else format(value, form)


def brief(value: object) -> str:
    return f'{value:.4g}' if isinstance(value, int | float) else str(value)


def change(value: float | None) -> str:
    return BLANK if value is None else signed(value)


def with_prefix(flops: float) -> str:
    """Return FLOPs with at most four digits and a prefix, e.g. '2.5 PFLOP'."""
    return FLOPS(float(f'{flops:.4g}'))


FILTERS = (
    quoted,
    coded,
    enumerated,
    phrased,
    counted,
    tallied,
    duration,
    decimals,
    brief,
    change,
    with_prefix,
)
ENVIRONMENT.filters.update({function.__name__: function for function in FILTERS})
