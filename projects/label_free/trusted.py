"""Find the label-free measure that an earlier study recommends for choosing networks."""

from pathlib import Path

import msgspec

from mmairl.errors import UserError
from mmairl.io import read_json
from projects.label_free.extra_measures import MEASURES

TRUSTED = 'trusted'
SETTINGS = 'settings of a method'
METHODS = 'methods'
EPOCHS = 'epochs of a run'
RECORD = Path(__file__).with_name('regret.json')  # the record of a small study


class Cell(msgspec.Struct):
    """The regret of a measure in a situation (a kind of choice, such as `SETTINGS`), its interval, and the verdict `word`.

    `within` is the number of `choices` whose regret is at most the margin.
    """

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
    """The part of a study.json that contains the regret of measures."""

    measures: Measures | None = None


def trusted(situation: str, record: str | Path = RECORD) -> tuple[str, str]:
    """Return the trusted measure with the lowest regret in a situation, and a sentence with its regret.

    Args:
        situation: `SETTINGS`, `METHODS` or `EPOCHS`.
        record: The study.json of a study with the analysis `projects.label_free.networks`, or the output of
            `projects.label_free.pool`.

    Raises:
        UserError: If the record trusts no measure in this situation.
    """
    measures = read_json(record, Record).measures
    cells = measures.situations.get(situation, {}) if measures else {}
    candidates = {
        name: cell for name, cell in cells.items() if name in MEASURES and cell.word == TRUSTED
    }
    if not candidates:
        raise UserError(
            f"--record: no measure is trusted to choose among {situation} ('{record}'); name the study.json of a study "
            'in which a measure is trusted (projects/label_free/README.md)',
            code='no-trusted-measure',
        )
    best = min(candidates, key=lambda name: candidates[name].regret)
    cell = candidates[best]
    counts = f'{cell.within} of {cell.choices} choices within {measures.margin:g}'
    regret = f'{cell.regret:.1f} points ({cell.low:.1f} to {cell.high:.1f})'
    return (
        best,
        f'{best} chooses among {situation}: its regret was {regret}, {counts}, according to {record}',
    )
