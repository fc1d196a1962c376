"""Measure how much NormRescale changes the features of a network: python projects/normrescale/mechanism.py RUNS

RUNS is the folder `runs` or `tuned` of a study. For each row (config) whose networks are rescaled, print the cosine of features
before and after rescaling, averaged over test images, with the old batch-norm statistics and with recomputed ones.

`--gains OUT` also writes the networks for studies/gains.yaml, in which only gains and biases are rescaled. Because batch norm
follows every kernel, such a network computes the same function as the fully rescaled network once the batch-norm statistics of
both are recomputed.
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
        help='also write to this folder networks in which only gains and biases are rescaled',
    )
    args = parser.parse_args()
    folder = args.runs
    register()
    cosines_by_row = defaultdict(list)
    for run in sorted(folder.glob('*/seed_*')):
        rescaling = read_json(run / 'asked.json', Asked).rescaled
        if rescaling and (run / 'result.json').is_file():
            cosines_by_row[run.parent.name].append(cosines(run, rescaling))
            if (
                args.gains
                and rescaling.anchor
                and not rescaling.exact
                and rescaling.per == 'tensor'
            ):
                original, rescaled_network = (
                    read_backbone(str(last_checkpoint(run_folder)))
                    for run_folder in (Path(rescaling.of), run)
                )
                write_backbone(
                    gains_alone(original, rescaled_network),
                    args.gains / run.parent.name / f'{run.name}.pth',
                )
    if not cosines_by_row:
        raise UserError(
            f'{folder}: has no finished run of a rescaled row; name the folder `runs` or `tuned` of a study'
        )
    rows = [
        (name, [spread(values) for values in zip(*pairs)]) for name, pairs in cosines_by_row.items()
    ]
    print_table(
        ('old statistics', 'recomputed statistics'),
        rows,
        'cosine with the features before rescaling',
        head='row',
    )


def cosines(run: Path, rescaling: Rescaled) -> list[float]:
    """Return the mean cosines of features before and after rescaling.

    The first is for the old batch-norm statistics, the second for recomputed statistics.
    """
    cfg = load_config(str(run / 'asked' / 'config.yaml'))
    original = read_backbone(str(last_checkpoint(Path(rescaling.of))))
    anchor = (
        rescaling.anchor and read_backbone(str(last_checkpoint(Path(rescaling.anchor)))).weights
    )
    weights, _ = normrescale(
        original.weights, anchor, rescaling.constant, rescaling.per, exact=rescaling.exact
    )
    fresh = read_backbone(str(last_checkpoint(run)))
    original_features, *changed_features = (
        features(cfg, network) for network in (original, replace(original, weights=weights), fresh)
    )
    return [
        torch.cosine_similarity(original_features, changed).mean().item()
        for changed in changed_features
    ]


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
