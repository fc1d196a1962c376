"""Compare checkpoints from any source in Python, with the statistics of a study.

A study is mmairl's comparison of training recipes. Each row of a study is one recipe with its checkpoints.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from mmairl.apis.evaluate import labeled_config
from mmairl.config import config_text
from mmairl.engine.run import register
from mmairl.errors import UserError
from mmairl.io import write_json, write_text
from mmairl.study.collect import collect
from mmairl.study.fairness import resolve_study
from mmairl.study.page import score_table, write_results
from mmairl.study.pool import complete_runs
from mmairl.study.runs import Run, lay_out_runs
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

    Returns:
        The results and the path of the HTML page.

    Raises:
        UserError: If `networks` is not a dictionary of lists with at least two entries, a task is unknown, a checkpoint does
            not fit its network, or two checkpoints hold the same model.

    Example:
        >>> mmairl.compare({'a': ['a0.pth', 'a1.pth'], 'b': ['b0.ckpt', 'b1.ckpt']}, data='images/')  # doctest: +SKIP
    """
    register()
    out = Path(out)
    has_lists = isinstance(networks, Mapping) and all(
        isinstance(paths, list | tuple) and paths for paths in networks.values()
    )
    if not has_lists or len(networks) < 2:
        raise UserError(
            'networks: expected a dictionary with two recipes or more, each with a list of its checkpoints; pass, for example, '
            "{'a': ['a0.pth', 'a1.pth'], 'b': ['b0.pth', 'b1.pth']}",
            code='bad-networks',
        )
    base, *_ = networks
    rows = []
    for name, paths in networks.items():
        cfg = labeled_config(paths[0], data, config, options)
        file = write_text(out / 'configs' / f'{Row(name, "").slug}.yaml', config_text(cfg))
        source = Source(files={seed: str(path) for seed, path in enumerate(paths)})
        row = Row(name, str(file), source=source)
        if name != base:
            row = replace(row, against=base, factor=f'{name} in place of {base}')
        rows.append(row)
    question = 'Which recipe scores higher on the same tasks and the same images?'
    study = Study(title=', '.join(networks), question=question, rows=tuple(rows))
    prepared = resolve_study(study, Scale(text=str(data)), tasks, out)
    runs = lay_out_runs(prepared)
    complete_runs(runs, jobs)
    record = collect(prepared, runs)
    if [len(row.files) for row in rows] == [1, 1]:
        record['paired_images'] = [*compared_images(runs[:2], tasks)]
        write_json(out / 'study.json', record)
    return ComparedCheckpoints(record, write_results(record, out))


def compared_images(runs: Sequence[Run], tasks: Sequence[str]) -> Iterator[str]:
    """Yield a line of text for each task that compares two checkpoints image by image."""
    one, other = (run.row.name for run in runs)
    for task in tasks if all(run.done for run in runs) else ():
        answers = [run.measured(task).right for run in runs]
        if None not in answers:
            found = compare_images(*(list(map(int, answer)) for answer in answers))
            decided = 'differ' if found.p <= LEVEL else 'are not shown to differ'
            yield (
                f'{task}: {found.only_second} of {found.images} images are recognized only by {other} and '
                f'{found.only_first} only by {one} (exact test, p = {found.p:.3g}). The two files {decided} on images '
                'from this distribution. The test does not compare training recipes.'
            )
