"""Measure how much NormRescale changes the features of a network: python projects/normrescale/mechanism.py RUNS

For each rescaled row among the runs of a study (its folder `runs` or `tuned`), print the cosine of features before and after
rescaling, averaged over test images, with the old batch-norm statistics and with recomputed ones.

`--gains OUT` also writes the networks for gains.yaml, in which only gains and biases are rescaled. Because batch norm
follows every kernel, such a network equals the fully rescaled one once its statistics are recomputed.
"""

import argparse
import statistics
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import torch
from mmengine.config import Config
from torch import Tensor

from mmairl.checkpoints.normrescale import normrescale
from mmairl.checkpoints.read import Backbone, read_backbone
from mmairl.checkpoints.write import write_backbone
from mmairl.config import load_config
from mmairl.engine.run import register
from mmairl.errors import UserError, one_sentence_errors
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.features import extraction
from mmairl.evaluation.protocol import default_device
from mmairl.io import read_json
from mmairl.models.backbones import pooled
from mmairl.registry import DATASETS
from mmairl.report.table import print_table
from mmairl.study.reuse import last_checkpoint
from mmairl.study.schema import Asked
from mmairl.study.spec import Rescaled


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        'runs',
        type=Path,
        help='read the runs of a study in this folder, such as work_dirs/studies/worth_small/runs',
    )
    parser.add_argument(
        '--gains',
        type=Path,
        metavar='OUT',
        help='also write networks in which only gains and biases are rescaled to this folder',
    )
    args = parser.parse_args()
    folder = args.runs
    register()
    found = defaultdict(list)
    for run in sorted(folder.glob('*/seed_*')):
        made = read_json(run / 'asked.json', Asked).rescaled
        if made and (run / 'result.json').is_file():
            found[run.parent.name].append(cosines(run, made))
            if args.gains and made.anchor and not made.exact and made.per == 'tensor':
                before, after = (
                    read_backbone(str(last_checkpoint(made_by))) for made_by in (Path(made.of), run)
                )
                write_backbone(
                    gains_alone(before, after), args.gains / run.parent.name / f'{run.name}.pth'
                )
    if not found:
        raise UserError(
            f'{folder}: has no finished run of a rescaled row; name the folder `runs` or `tuned` of a study'
        )
    rows = [(name, [spread(values) for values in zip(*pairs)]) for name, pairs in found.items()]
    print_table(
        ('old statistics', 'recomputed statistics'),
        rows,
        'cosine with the features before rescaling',
        head='row',
    )


def cosines(run: Path, made: Rescaled) -> list[float]:
    """Return the mean cosines of features before and after rescaling.

    The first is for the old batch-norm statistics, the second for recomputed statistics.
    """
    cfg = load_config(str(run / 'asked' / 'config.yaml'))
    before = read_backbone(str(last_checkpoint(Path(made.of))))
    anchor = made.anchor and read_backbone(str(last_checkpoint(Path(made.anchor)))).weights
    weights, _ = normrescale(before.weights, anchor, made.constant, made.per, exact=made.exact)
    fresh = read_backbone(str(last_checkpoint(run)))
    own, *others = (
        features(cfg, network) for network in (before, replace(before, weights=weights), fresh)
    )
    return [torch.cosine_similarity(own, other).mean().item() for other in others]


def gains_alone(before: Backbone, after: Backbone) -> Backbone:
    """Return a network with the kernels of the original and everything else of the rescaled network."""
    kernels = {name: weight for name, weight in before.weights.items() if weight.ndim > 1}
    return replace(after, weights={**after.weights, **kernels})


def features(cfg: Config, backbone: Backbone) -> Tensor:
    network = load_backbone(cfg, backbone)
    network.eval()
    images = extraction(cfg, default_device(), 0).images(
        DATASETS.build(cfg.evaluation.test), 'images'
    )
    with torch.inference_mode():
        return torch.cat([pooled(network(batch)) for batch, *_ in images])


def spread(values: list[float]) -> str:
    return f'{statistics.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})'


if __name__ == '__main__':
    main()
