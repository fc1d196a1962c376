"""Compare the error rates and the power of decision rules: python -m projects.verdicts.bakeoff [--figure FILE]"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt

from projects.verdicts.rules import RULES, SCORES, rates

SEEDS = (3, 5, 10)
GAIN = 10.0


def table() -> dict[str, dict[str, float]]:
    """Return the rates of each rule in percent, for each number of seeds.

    The rates are the highest rate of false winners over all distributions of scores, and the power.
    """
    found = {}
    for name, rule in RULES.items():
        row = {}
        for seeds in SEEDS:
            row[f'false winner, {seeds} seeds'] = 100 * max(
                rates(rule, kind, seeds, gain=0) for kind in SCORES
            )
        for seeds in SEEDS:
            row[f'power, {seeds} seeds'] = 100 * rates(rule, 'normal', seeds, gain=GAIN)
        found[name] = row
    return found


def draw(found: dict[str, dict[str, float]], path: Path) -> None:
    """Draw a bar chart of the rate of false winners with five seeds."""
    names = list(found)[::-1]
    values = [found[name]['false winner, 5 seeds'] for name in names]
    figure, axes = plt.subplots(figsize=(6.5, 2.8), layout='constrained')
    bars = axes.barh(
        names, values, color=['#1b5fc1' if name == 'mmairl' else '#9aa4b2' for name in names]
    )
    axes.bar_label(bars, fmt='%.1f %%', padding=3)
    axes.axvline(5, color='#b3261e', linewidth=1, label='5 %')
    axes.set(xlim=(0, 112), xlabel='tables with a false winner, % (five seeds)')
    axes.legend(frameon=False, loc='lower right')
    axes.spines[['top', 'right']].set_visible(False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--figure', type=Path, help='write a chart of the error rates with five seeds to this file'
    )
    args = parser.parse_args()
    found = table()
    heads = list(next(iter(found.values())))
    print(f'| rule | {" | ".join(heads)} |\n|---|{"--:|" * len(heads)}')
    for name, row in found.items():
        print(f'| {name} | {" | ".join(f"{value:.1f} %" for value in row.values())} |')
    if args.figure:
        draw(found, args.figure)


if __name__ == '__main__':
    main()
