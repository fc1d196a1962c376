"""Print the table framework x factor of docs/frameworks.md, read off the configs: python tools/factors.py.

Bold is what changes from the framework that a row builds on.
"""

from mmairl.config import load_config
from mmairl.study.factors import factors_of

# Every framework of the paper and the one that it changes a factor of.
BUILT_ON = {
    'mocov2': None,
    'mocov2_syncbn': 'mocov2',
    'mocov2_syncbn_predictor': 'mocov2_syncbn',
    'mocov2_syncbn_predictor_momentum': 'mocov2_syncbn_predictor',
    'mocov2plus': 'mocov2_syncbn_predictor_momentum',
    'mocov2plus_complexaug': 'mocov2plus',
    'smocov2plus': 'mocov2plus',
    'byol': 'mocov2plus_complexaug',
    'byol_asymmetric': 'byol',
    'mocov2plus_lars': 'mocov2plus',
    'byol_lars': 'byol',
}


def table() -> str:
    """Return the table in Markdown, from the resolved configs."""
    rows = {name: factors_of(load_config(f'mmairl::{name}_r50_200e.py')) for name in BUILT_ON}
    columns = list(rows['mocov2'])
    lines = [f'| framework | {" | ".join(columns)} |', '|---' * (len(columns) + 1) + '|']
    for name, row in rows.items():
        base = rows.get(BUILT_ON[name], row)
        cells = [f'**{row[key]}**' if row[key] != base[key] else row[key] for key in columns]
        lines.append(f'| `{name}` | {" | ".join(cells)} |')
    return '\n'.join(lines) + '\n'


def main() -> None:
    print(table(), end='')


if __name__ == '__main__':
    main()
