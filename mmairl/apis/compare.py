"""Compare checkpoints from any source in Python, with the statistics of a study.

A study is mmairl's comparison of training recipes. Each row of a study is one recipe with its checkpoints.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmairl.apis.evaluate import labeled_config
from mmairl.config import config_text
from mmairl.engine.run import register
from mmairl.errors import UserError
from mmairl.evaluation.metrics import unpacked
from mmairl.hardware import cores
from mmairl.io import read_json, write_json, write_text
from mmairl.study.collect import collect
from mmairl.study.fairness import resolve_study
from mmairl.study.page import score_table, write_results
from mmairl.study.pool import complete_runs
from mmairl.study.runs import Measured, lay_out
from mmairl.study.scale import Scale
from mmairl.study.statistics.contrasts import LEVEL
from mmairl.study.statistics.paired_images import compare_images
from mmairl.study.study import Row, Source, Study


@dataclass(frozen=True)
class ComparedCheckpoints:
    """The result of `compare`. A notebook displays it as a table.

    Args:
        record: All results of the comparison, with the same content as study.json.
        page: Path of the HTML page with effects, confidence intervals and verdicts.
    """

    record: dict[str, Any]
    page: Path

    def __str__(self) -> str:
        return '\n'.join(
            [score_table(self.record).markdown(), *self.record.get('paired_images', ())]
        )

    def _repr_html_(self) -> str:
        return score_table(self.record).html()


def compare(
    networks: Mapping[str, Sequence[str | Path]],
    data: str | Path,
    tasks: Sequence[str] = ('knn', 'logreg'),
    out: str | Path = 'work_dirs/judged',
    *,
    config: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    say: Callable[[str], None] = print,
) -> ComparedCheckpoints:
    """Measure the checkpoints of several training recipes on the same tasks, and test which recipe is better.

    Finished measurements are reused. A randomly initialized network is measured as well, and collapsed checkpoints are
    recognized by a comparison with this network. If there are two recipes with one checkpoint each, `compare` also compares
    the predictions of the two checkpoints image by image. The verdict of that comparison is about the two files and does not
    extend to their recipes.

    Args:
        networks: A dictionary from the name of each recipe to a list of its checkpoints, one per seed. All other recipes
            are compared with the first recipe.
        data: The labeled images, as in `mmairl.evaluate`.
        tasks: Names of evaluation protocols, as in `mmairl evaluate`.
        out: Folder for features, results, study.json and page.html.
        config: A config that defines the network. Required if the checkpoints are neither ResNets nor ViTs.
        options: Config keys to override, as in `--cfg-options`.
        jobs: Number of parallel measurements. Default: the number of GPUs, or of CPU cores if there is no GPU.
        say: Function that is called with each line of progress.

    Returns:
        The results and the path of the HTML page.

    Raises:
        UserError: If there are fewer than two recipes, a task is unknown, a checkpoint does not fit its network, or two
            checkpoints hold the same model.

    Example:
        >>> mmairl.compare({'a': ['a0.pth', 'a1.pth'], 'b': ['b0.ckpt', 'b1.ckpt']}, data='images/')  # doctest: +SKIP
    """
    register()
    out = Path(out)
    if not isinstance(networks, Mapping) or len(networks) < 2:
        raise UserError(
            f"networks: expected a dictionary with at least two recipes ('{list(networks)}'); pass, for example, "
            "{'a': ['a0.pth', 'a1.pth'], 'b': ['b0.pth', 'b1.pth']}",
            code='too-few-networks',
        )
    rows: list[Row] = []
    configs = {}
    for name, paths in networks.items():
        row = external_row(name, paths, out / 'configs', base=rows[0] if rows else None)
        configs[name] = labeled_config(row.files[0], data, config, options)
        rows.append(row)
    question = 'Which recipe scores higher on the same tasks and the same images?'
    study = Study(title=', '.join(networks), question=question, rows=tuple(rows))
    for row in rows:
        write_text(row.config, config_text(configs[row.name]))
    prepared = resolve_study(study, Scale(), tasks, out)
    runs = lay_out(prepared)
    complete_runs(runs, jobs or torch.cuda.device_count() or cores(), 1, say)
    record = collect(prepared, runs)
    if lines := compared_images(record, rows, out):
        record['paired_images'] = lines
        write_json(out / 'study.json', record)
    return ComparedCheckpoints(record, write_results(record, out))


def compared_images(record: Mapping[str, Any], rows: Sequence[Row], out: Path) -> list[str]:
    """Return the lines of text that compare two checkpoints image by image.

    The list is empty unless there are exactly two recipes with one checkpoint each.
    """
    if [len(row.files) for row in rows] != [1, 1]:
        return []
    one, other = (row.name for row in rows)
    lines = []
    for metric in record['metrics']:
        answers = []
        for row in record['rows'][:2]:
            path = out / row['runs'][0]['folder'] / f'{metric["key"]}.json'
            answers.append(read_json(path, Measured).right if path.is_file() else None)
        if None not in answers:
            found = compare_images(*map(unpacked, answers))
            decided = 'differ' if found.p <= LEVEL else 'are not shown to differ'
            lines.append(
                f'{metric["label"]}: {found.only_second} of {found.images} images are recognized only by {other} and '
                f'{found.only_first} only by {one} (exact test, p = {found.p:.3g}). The two files {decided} on images '
                'from this distribution. The test does not compare training recipes.'
            )
    return lines


def external_row(name: str, paths: Sequence[str | Path], configs: Path, base: Row | None) -> Row:
    """Return one recipe with its checkpoints as a row of a study. If `base` is set, the recipe is compared with this row."""
    if not paths or isinstance(paths, str | Path):
        raise UserError(
            f"networks['{name}']: expected a list of checkpoints, one per seed ('{paths}'); pass, for example, "
            "['seed0.pth', 'seed1.pth']",
            code='no-checkpoint-list',
        )
    files = {number: str(path) for number, path in enumerate(paths)}
    comparison = {}
    if base is not None:
        comparison = dict(against=base.name, factor=f'{name} in place of {base.name}')
    slug = Row(name, '').slug
    return Row(name, str(configs / f'{slug}.yaml'), source=Source(files=files), **comparison)
