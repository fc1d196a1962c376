"""Pool the regret of several studies.

python -m projects.label_free.pool STUDY.JSON... [--out POOLED.JSON]

Regret is the test score that is lost if a measure without labels chooses a network. Each argument is the study.json of a study
with `analyses: [projects.label_free.networks]`. Each choice is among networks of one study, and regret, intervals and verdicts
are over the choices of all studies. The command prints a Markdown table; projects.label_free.choose accepts POOLED.JSON as
--record.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmairl.errors import UserError, one_sentence_errors
from mmairl.io import output, read_json, write_json
from projects.label_free.networks import Network, choices_among, situations
from projects.label_free.regret import UNDECIDED
from projects.label_free.trusted import EPOCHS, METHODS, SETTINGS


def pool(paths: Sequence[str | Path]) -> dict[str, Any]:
    """Return the record of regret over the choices of several studies with the same task and margin."""
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise UserError('a study is listed twice; list each study once', code='same-study')
    titles = []
    choices = defaultdict(list)
    expected: dict[str, Any] = {}
    for path in paths:
        study = read_json(path, dict)
        measures = study.get('measures') or {}
        if not measures.get('networks'):
            raise UserError(
                f"'{path}': has no measured networks; run its study with `analyses: [projects.label_free.networks]`",
                code='no-measures',
            )
        common = dict(task=measures['task'], margin=measures['margin'])
        expected = expected or common
        if common != expected:
            raise UserError(
                f"'{path}': measured with {common}, but '{paths[0]}' with {expected}; pool studies of one task and one margin",
                code='different-studies',
            )
        titles.append(f'{study.get("title", path)}, {study.get("scale", {}).get("name", "?")}')
        for situation, group in choices_among(map(_network, measures['networks'])).items():
            choices[situation] += group
    pooled = {name: choices[name] for name in (SETTINGS, METHODS, EPOCHS) if name in choices}
    return dict(
        title='Pooled',
        studies=titles,
        measures=dict(expected, situations=situations(pooled, expected['margin'])),
    )


def _network(record: Mapping[str, Any]) -> Network:
    values = {
        name: math.nan if value is None else value for name, value in record['values'].items()
    }
    return Network(**{**record, 'values': values})


def markdown(measures: Mapping[str, Any]) -> str:
    """Return a table with a row for each measure and a column for each situation."""
    matrix = measures['situations']
    heads = ['measure']
    for name, cells in matrix.items():
        heads.append(f'{name} ({max(cell["choices"] for cell in cells.values())} choices)')
    lines = [heads, ['---'] * len(heads)]
    names = dict.fromkeys(name for cells in matrix.values() for name in cells)
    for name in names:
        lines.append([name, *(_format(cells.get(name)) for cells in matrix.values())])
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def _format(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return '—'
    word = '' if cell['word'] == UNDECIDED else f'**{cell["word"]}** '
    rho = '' if cell['correlation'] is None else f', ρ {cell["correlation"]:.2f}'
    return f'{word}{cell["regret"]:.1f} ({cell["low"]:.1f} to {cell["high"]:.1f}), {cell["within"]}{rho}'


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('studies', nargs='+', metavar='STUDY.JSON')
    parser.add_argument('--out', help='write the record, for projects.label_free.choose --record')
    args = parser.parse_args()
    record = pool(args.studies)
    print(f'{"; ".join(record["studies"])}\n\n{markdown(record["measures"])}')
    if args.out:
        print(write_json(output(args.out, *args.studies), record))


if __name__ == '__main__':
    main()
