"""The measure without labels that is trusted to choose by, as the record of a study's regret says (projects/label_free)."""

from pathlib import Path

import msgspec

from mmairl.analysis.measures import MEASURES
from mmairl.errors import UserError
from mmairl.io import read_json

TRUSTED = 'trusted'
SETTINGS, METHODS, EPOCHS = 'settings of a method', 'methods', 'epochs of a run'
LABEL_FREE = 'label_free'  # a criterion; a study.json after it is in place of the one that comes with mmairl
COMES_WITH_US = Path(__file__).with_name('regret.json')


class Cell(msgspec.Struct):
    """The regret of a measure in a situation, with its interval, and the word on it."""

    word: str
    regret: float
    low: float
    high: float
    within: int
    choices: int


class Measures(msgspec.Struct):
    margin: float
    situations: dict[str, dict[str, Cell]]


class Record(msgspec.Struct):
    """The part of a study.json that says which measures are trusted; none where they were not taken."""

    measures: Measures | None = None


def trusted(situation: str, criterion: str = LABEL_FREE) -> tuple[str, str]:
    """Return the measure with the least regret of those that are trusted in a situation, and a sentence on it."""
    path = criterion.partition(' ')[2] or COMES_WITH_US
    measures = read_json(path, Record).measures
    cells = measures.situations.get(situation, {}) if measures else {}
    least = {name: cell.regret for name, cell in cells.items() if name in MEASURES and cell.word == TRUSTED}
    if not least:
        raise UserError(
            f'no measure is trusted to choose among {situation} by {path}, so nothing is chosen without labels; leave '
            f'{LABEL_FREE} out, or name the study.json of a study of yours whose --measures are trusted (docs/measures.md)'
        )
    cell = cells[best := min(least, key=least.get)]
    counts = f'{cell.within} of {cell.choices} choices within {measures.margin:g}'
    regret = f'{cell.regret:.1f} points ({cell.low:.1f} to {cell.high:.1f})'
    return best, f'{best} chooses among {situation}: its regret was {regret}, {counts}, by {path}'
