"""Records of studies with invented scores, in the form that mmairl.study.collect writes."""

from collections.abc import Sequence
from typing import Any

from mmairl.study.collect import add_statistics

Record = dict[str, Any]
NOISE = ((-0.4, 0.1, 0.3), (0.2, -0.5, 0.3), (0.1, 0.3, -0.4))


def run(seed: int, score: float | None, **changes: Any) -> Record:
    finished = dict(
        seed=seed,
        state='done',
        folder=f'runs/x/seed_{seed}',
        scores={'knn': score},
        start=dict(weights='a', shapes='b', order=str(seed)),
        seconds=118.0 + seed,
        images_seen=3600,
        commit='b34afd9',
        hardware='CPU (x86_64)',
        collapsed=False,
    )
    return finished | changes


def row(name: str, scores: Sequence[float], on: str | None = None, **changes: Any) -> Record:
    usual = dict(
        name=name,
        config='c.py',
        factor='a factor' if on else '',
        on=on,
        group='',
        x=None,
        untrained=None,
        external=False,
        published={},
        flops=1e9,
        runs=[run(seed, score) for seed, score in enumerate(scores)],
    )
    return usual | changes


def record(rows: Sequence[Record], seeds: int = 3, **changes: Any) -> Record:
    content = dict(
        name='ladder',
        title='One factor at a time',
        question='Which details make the difference?',
        paper='Tab. 1',
        x='',
        margin=1.0,
        interim_analyses=1,
        command=['mmairl', 'study', 'ladder.yaml', '--scale', 'demo'],
        scale=dict(name='demo', text='small networks on Shapes'),
        seeds=list(range(seeds)),
        tuned={},
        metrics=[dict(key='knn', label='k-NN', unit='%', lower_is_better=False)],
        rows=list(rows),
        notes=[],
        fairness=dict(before=[], after=[]),
        design=None,
    )
    content |= changes
    add_statistics(content)
    return content


def steps(*levels: float, paired: bool = True) -> list[Record]:
    """Return rows that form a chain, each with three seeds around a level."""
    rows: list[Record] = []
    for number, level in enumerate(levels):
        scores = [level + noise for noise in NOISE[number % 3]]
        base = rows[-1]['name'] if rows else None
        rows.append(row(f'row {number}', scores, base))
    if not paired:
        for one in rows:
            for each in one['runs']:
                each['start'] = None
    return rows


def entry(row: str, on: str, **changes: Any) -> Record:
    """Return the result of comparing the configs of two rows."""
    return dict(row=row, on=on, found=[], undeclared=[], declares=[], unknown=False) | changes
