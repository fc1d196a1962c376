"""Checkpoints from anywhere, judged in a line of Python as the rows of a study are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config

from mmairl.checkpoints.read import read_backbone
from mmairl.config import load_config, write_config
from mmairl.engine.run import register
from mmairl.errors import UserError, cleared_frames
from mmairl.hardware import cores
from mmairl.report.table import html_table
from mmairl.study.collect import collect
from mmairl.study.external import require_distinct, require_networks
from mmairl.study.fairness import at_scale
from mmairl.study.measure import require_known
from mmairl.study.pages.study_page import write_study_page
from mmairl.study.pages.study_tables import columns, markdown, table_lines
from mmairl.study.run_study import complete
from mmairl.study.runs import lay_out
from mmairl.study.scale import Scale
from mmairl.study.spec import Row, Study

AS_IT_IS = Scale(text='as given', rate=1, rate_source='nothing is trained', images=1, floor=('random',))
PARTS = (('train', ('train',)), ('test', ('test', 'val')))


@dataclass(frozen=True)
class Judged:
    """The record of a comparison, as in study.json, and its page; a notebook shows the table."""

    record: dict[str, Any]
    page: Path

    def __str__(self) -> str:
        return markdown(self.record)

    def _repr_html_(self) -> str:
        heads, comparisons = columns(self.record), self.record['comparisons']
        said = {(pair['row'], key): f': {pair["verdict"]}' for key, family in comparisons.items() for pair in family}
        rows = []
        for line in table_lines(self.record):
            name = line.row['name']
            told = [f'{cell.change}{said.get((name, head.key), "")}' for cell, head in zip(line.cells, heads)]
            cells = [f'{cell.value} {cell.spread} (n = {cell.n}) {more}' for cell, more in zip(line.cells, told)]
            rows.append((name, cells))
        return html_table([head.label for head in heads], rows)


@cleared_frames()
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
) -> Judged:
    """Measure networks by the same tasks and say which is ahead, with intervals and verdicts; what is finished is kept.

    Beside them stands the network with random weights, by which collapsed ones are told.

    Args:
        networks: by name, the checkpoints of one recipe from several seeds; each is compared with the first.
        data: a folder with train/CLASS and test/CLASS (or val/CLASS), or a config with `evaluation`.
        tasks: protocols of tools/evaluate.py.
        out: where features, results, study.json and page.html go.
        config: the config of networks that are no ResNets.
        options: config keys as `--cfg-options` has them.
        jobs: how many are measured beside each other; by default one a GPU, or one a core.

    >>> mmairl.compare({'a': ['a0.pth', 'a1.pth'], 'b': ['b0.ckpt', 'b1.ckpt']}, data='images/')  # doctest: +SKIP
    """
    register()
    rows, out, configs = [], Path(out), {}
    if not isinstance(networks, Mapping) or len(networks) < 2:
        raise UserError(f'there is nothing to compare in {list(networks)}; give two networks or more, each by its name')
    for name, paths in networks.items():
        if not paths or isinstance(paths, (str, Path)):
            raise UserError(f"'{name}' wants a list of checkpoints, one for each seed, not {paths!r}")
        weights = {number: str(path) for number, path in enumerate(paths)}
        file = out / 'configs' / f'{Row(name, "").slug}.yaml'
        configs[name] = config_of(weights[0], data, config, options)
        beside = dict(against=rows[0].name, factor=f'{name} in place of {rows[0].name}') if rows else {}
        rows.append(Row(name, str(file), weights=weights, **beside))
    require_known(tasks)  # after the configs, which may register protocols
    require_distinct(rows)
    require_networks(rows, configs)
    for row in rows:
        write_config(configs[row.name], Path(row.config))
    question = 'Which network is ahead, by the same tasks on the same images?'
    study = Study(title=', '.join(networks), question=question, rows=tuple(rows))
    study, configs, left_out = at_scale(study, AS_IT_IS, tasks)
    runs = lay_out(study, configs, study.seeds, tasks, out)
    complete(runs, jobs or torch.cuda.device_count() or cores(), 1, say)
    record = collect(study, configs, AS_IT_IS, runs, out, left_out)
    return Judged(record, write_study_page(record, out / 'page.html'))


def config_of(
    checkpoint: str, data: str | Path, config: str | Path | None, options: Mapping[str, Any] | None
) -> Config:
    """Return the network of a checkpoint beside the images that it is measured on."""
    folder = Path(data).is_dir()
    cfg = load_config('mmairl::evaluation/folder_r50.py' if folder else data, dict(options or {}))
    if folder:
        for part, names in PARTS:
            roots = [root for name in names if (root := Path(data) / name).is_dir()]
            if not roots:
                raise UserError(
                    f'{Path(data).absolute()} has no folder {" or ".join(names)} of classes; make it, or give a config'
                )
            cfg.evaluation[part].root = str(roots[0].absolute())
    if config is not None:
        cfg.model = load_config(config).model
    else:
        backbone = read_backbone(checkpoint).network
        cfg.model.backbone = {**(cfg.model.backbone if 'depth' in backbone else {}), **backbone}
    return cfg
