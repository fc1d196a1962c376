"""Print the factors in which each framework differs from the framework that it builds on, according to the configs."""

from collections.abc import Sequence

from mmairl.cli.flags import parser_of

# This table maps each framework of Huang et al. (2022) to the framework that it builds on.
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


def main(arguments: Sequence[str]) -> None:
    parser_of('factors', __doc__).parse_args(arguments)
    print(table(), end='')


def table() -> str:
    """Return a Markdown table of the factors, which are read from the complete configs."""
    # These imports come after the parsing of arguments, because importing OpenMMLab takes seconds.
    from mmairl.config import load_config
    from mmairl.study.factors import factors_of

    rows = {name: factors_of(load_config(f'mmairl::{name}_r50_200e.py')) for name in BUILT_ON}
    lines = ['| framework | builds on | changes |', '|---|---|---|']
    for name, base in BUILT_ON.items():
        before = rows.get(base, {})
        changes = [
            f'{key}: {value}' for key, value in rows[name].items() if value != before.get(key)
        ]
        builds_on = f'`{base}`' if base else ''
        lines.append(f'| `{name}` | {builds_on} | {"; ".join(changes)} |')
    return '\n'.join(lines) + '\n'
