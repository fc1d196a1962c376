"""One matrix of several studies: python -m projects.label_free.pool STUDY.JSON... [--out POOLED.JSON]

Each is the study.json of a study that ran with --measures. Choices stay inside their study; regret, intervals and words are
over those of all. It prints the matrix as Markdown, and POOLED.JSON is what `criterion: label_free POOLED.JSON` reads.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmairl.errors import UserError, one_sentence_errors
from mmairl.io import output, read_json, write_json
from mmairl.study.trusted import EPOCHS, METHODS, SETTINGS
from projects.label_free.networks import Network, choices_among, situations
from projects.label_free.regret import UNDECIDED


def pool(paths: Sequence[str | Path]) -> dict[str, Any]:
    """Return the record of regret over the choices of all these studies, which share a task and a margin."""
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise UserError('a study is given twice; give each once')
    records = {str(path): read_json(path, dict) for path in paths}
    choices, first = defaultdict(list), None
    for path, record in records.items():
        measures = record.get('measures') or {}
        if not measures.get('networks'):
            raise UserError(f'{path} has no networks with measures; run its study with --measures')
        same = dict(task=measures['task'], margin=measures['margin'])
        if same != (first := first or same):
            raise UserError(f'{path} has {same} and {paths[0]} has {first}; pool studies of one task and one margin')
        for situation, found in choices_among(map(_network, measures['networks'])).items():
            choices[situation] += found
    kept = {name: choices[name] for name in (SETTINGS, METHODS, EPOCHS) if name in choices}
    said = [f'{study.get("title", path)}, {study.get("scale", {}).get("name", "?")}' for path, study in records.items()]
    return dict(title='Pooled', studies=said, measures=dict(first, situations=situations(kept, first['margin'])))


def _network(record: Mapping[str, Any]) -> Network:
    values = {name: math.nan if value is None else value for name, value in record['values'].items()}
    return Network(**{**record, 'values': values})


def markdown(measures: Mapping[str, Any]) -> str:
    """Return the matrix: a row a measure, a column a situation."""
    matrix = measures['situations']
    heads = [f'{name} ({max(cell["choices"] for cell in cells.values())} choices)' for name, cells in matrix.items()]
    lines = [['measure', *heads], ['---'] * (1 + len(matrix))]
    for name in dict.fromkeys(name for cells in matrix.values() for name in cells):
        lines.append([name, *(_said(cells[name]) if name in cells else '—' for cells in matrix.values())])
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def _said(cell: Mapping[str, Any]) -> str:
    word = '' if cell['word'] == UNDECIDED else f'**{cell["word"]}** '
    rho = '' if cell['correlation'] is None else f', ρ {cell["correlation"]:.2f}'
    return f'{word}{cell["regret"]:.1f} ({cell["low"]:.1f} to {cell["high"]:.1f}), {cell["within"]}{rho}'


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('studies', nargs='+', metavar='STUDY.JSON')
    parser.add_argument('--out', help="the record, for `criterion: label_free` and stop='label-free'")
    args = parser.parse_args()
    record = pool(args.studies)
    print(f'{"; ".join(record["studies"])}\n\n{markdown(record["measures"])}')
    if args.out:
        print(write_json(output(args.out, *args.studies), record))


if __name__ == '__main__':
    main()
