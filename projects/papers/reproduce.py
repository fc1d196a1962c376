"""Writes docs/reproduce.md and docs/assumptions.md, from the studies, the configs and coverage.yaml."""

import ast
from pathlib import Path

import yaml

from mmairl.study.spec import catalogue

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT / 'configs/studies', *(ROOT / f'projects/{name}/studies' for name in ('judge', 'msbreg'))]
REPRODUCE = """# Reproduce the papers

Each table and figure is a [study](studies.md), or a command, or a sentence that says why not. A study lists configs, the
factor that each changes, and the published numbers that stand beside what you measure. One command plans, trains, evaluates
and writes the page; given again after an interruption, it goes on.

```bash
python tools/study.py configs/studies/ladder.yaml --scale in1k --gpus 8 --per-run 8 --dry-run   # runs, hours, disk
python tools/study.py configs/studies/ladder.yaml --scale in1k --gpus 8 --per-run 8
python tools/study.py configs/studies/ladder.yaml --scale demo                                  # minutes, on a CPU
```

`in1k` is the papers' own size and wants ImageNet in `data/imagenet/{{train,val}}` and the sets that
[evaluation](evaluation.md) and [transfer](transfer.md) name. At `demo`, `cifar` and `in100` the rows differ in the same
factors, and the published numbers are of another size: they stand there to compare the order of rows, not their values.
What the papers do not say, and we chose, is on the page of [assumptions](assumptions.md).
`python projects/papers/reproduce.py` makes both pages, and a test holds them to the studies.

## Every table and figure

{coverage}
## The studies

In `configs/studies/`; those that need a project are in its folder `studies`. A figure or table without another name is of
*Revisiting the Critical Factors of AIRL*. The table is made by `python tools/study.py --list`.

{catalogue}
## One row by hand

A study does for each row what these commands do for MoCo v2+ with SGD:

```bash
tools/dist_train.sh configs/mocov2plus_r50_200e.py 8 --resume --seed 0
python tools/evaluate.py linear configs/mocov2plus_r50_200e.py work_dirs/mocov2plus_r50_200e/epoch_200.pth
python tools/transfer.py work_dirs/mocov2plus_r50_200e/epoch_200.pth --gpus 8 --beside mocov2plus_sgd \\
    --tasks voc07,voc0712,coco_c4,coco_fpn,cityscapes
```

What we did measure, on two CPU cores and drawn images, is in [NormRescale](normrescale.md) and in the projects' pages.
Nothing was trained at full size here; the published numbers, each with its table and row, are in
`configs/studies/_published/`.
"""
ASSUMPTIONS = """# Assumptions

What the papers do not say, or say in two ways, and we chose. A config names what it assumes in its key `assumptions`, and the
configs that inherit from it share that. A study's page lists what its rows and their tasks assume. This page is made
from the configs by `python projects/papers/reproduce.py`.

| what was chosen | in the config, and those that inherit from it |
|---|---|
{rows}"""


def coverage() -> list[dict]:
    """The papers, each with its items."""
    return yaml.safe_load(Path(__file__).with_name('coverage.yaml').read_text())


def coverage_table() -> str:
    text = ''
    for paper in coverage():
        text += f'**{paper["paper"]}**\n\n| in the paper | here | |\n|---|---|---|\n'
        for item in paper['items']:
            ways = [f'`{name}.yaml`' for name in item.get('studies', ())] + [
                f'`{line}`' for line in item.get('commands', ())
            ]
            text += f'| {item["item"]} | {", ".join(ways) or "—"} | {item.get("why", "")} |\n'
        text += '\n'
    return text


def assumption_rows() -> str:
    """Each sentence with the config that has it."""
    found = ''
    for path in sorted([*ROOT.glob('configs/**/*.py'), *ROOT.glob('projects/*/configs/*.py')]):
        for line in ast.parse(path.read_text()).body:
            if isinstance(line, ast.Assign) and getattr(line.targets[0], 'id', '') == 'assumptions':
                said = [word.value.value for word in line.value.keywords if word.value.value]
                found += ''.join(f'| {text} | `{path.relative_to(ROOT).as_posix()}` |\n' for text in said)
    return found


def catalogue_rows(folder: Path) -> str:
    """Return the studies of a folder as rows of one table, which begins with the first folder."""
    table = catalogue(folder)
    return table if folder == FOLDERS[0] else table.split('\n', 2)[2]


def pages() -> dict[Path, str]:
    """The pages as they should be."""
    reproduce = REPRODUCE.format(coverage=coverage_table(), catalogue=''.join(map(catalogue_rows, FOLDERS)))
    return {
        ROOT / 'docs' / 'reproduce.md': reproduce,
        ROOT / 'docs' / 'assumptions.md': ASSUMPTIONS.format(rows=assumption_rows()),
    }


if __name__ == '__main__':
    for path, text in pages().items():
        path.write_text(text)
