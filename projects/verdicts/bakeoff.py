"""Compare the error rates and the power of decision rules: python -m projects.verdicts.bakeoff [--figure FILE]"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt

from projects.verdicts.rules import RULES, SCORES, rates

SEEDS = (3, 5, 10)
GAIN = 10.0


def table() -> dict[str, dict[str, float]]:
    """Return, for each rule and each number of seeds, the rate of false winners and the power in percent.

    The rate of false winners is the highest over all distributions of scores. The power is for normal scores.
    """
    rates_by_rule = {}
    for name, rule in RULES.items():
        row = {}
        for seeds in SEEDS:
            row[f'false winner, {seeds} seeds'] = 100 * max(
                rates(rule, kind, seeds, gain=0) for kind in SCORES
            )
        for seeds in SEEDS:
            row[f'power, {seeds} seeds'] = 100 * rates(rule, 'normal', seeds, gain=GAIN)
        rates_by_rule[name] = row
    return rates_by_rule


def draw(rates_by_rule: dict[str, dict[str, float]], path: Path) -> None:
    """Draw a bar chart of the rate of false winners with five seeds."""
    names = list(rates_by_rule)[::-1]
    values = [rates_by_rule[name]['false winner, 5 seeds'] for name in names]
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
    rates_by_rule = table()
    heads = list(next(iter(rates_by_rule.values())))
    print(f'| rule | {" | ".join(heads)} |\n|---|{"--:|" * len(heads)}')
    for name, row in rates_by_rule.items():
        print(f'| {name} | {" | ".join(f"{value:.1f} %" for value in row.values())} |')
    if args.figure:
        draw(rates_by_rule, args.figure)


if __name__ == '__main__':
    main()
