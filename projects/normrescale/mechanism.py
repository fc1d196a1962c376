"""How far each form of NormRescale changes what a network computes: python projects/normrescale/mechanism.py STUDY_FOLDER

Of each seed's LARS-trained network in the folder of a finished worth.yaml: the cosine of its features with those after
rescaling by SGD's, over test images, with the statistics of batch norm that the form leaves, and with fresh ones.
"""

import argparse
import statistics
from pathlib import Path

import torch
from torch import Tensor

from mmairl.analysis.normrescale import normrescale
from mmairl.configs import load_config
from mmairl.engine.launch import register
from mmairl.errors import UserError, one_sentence_errors
from mmairl.evaluation.backbone import load_backbone, refresh_statistics
from mmairl.evaluation.on_features import extraction
from mmairl.evaluation.protocol import default_device
from mmairl.models.siamese import pooled
from mmairl.registry import DATASETS
from mmairl.report.table import print_table
from mmairl.study.derived import last_checkpoint
from mmairl.weights.read import read_backbone

CONFIG = Path(__file__).parent / 'supervised' / 'lars_shapes.py'
FORMS = {
    'plain': dict(),
    'plain, by channel': dict(per='channel'),
    'exact': dict(exact=True),
    'exact, by channel': dict(exact=True, per='channel'),
}


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path, help='of the study: work_dirs/studies/worth_small')
    folder = parser.parse_args().folder
    register()
    cfg = load_config(str(CONFIG))
    how = extraction(cfg, default_device(), 0)
    images = [batch for batch, *_ in how.images(DATASETS.build(cfg.evaluation.test), 'images')]
    found = {(form, fresh): [] for form in FORMS for fresh in (False, True)}
    for lars in sorted((folder / 'runs' / 'lars').glob('seed_*')):
        sgd = folder / 'runs' / 'sgd' / lars.name
        if not all((run / 'result.json').is_file() for run in (lars, sgd)):
            continue
        backbone = read_backbone(str(last_checkpoint(lars)))
        anchor = read_backbone(str(last_checkpoint(sgd))).weights
        own = dict(backbone.weights)
        before = features(cfg, backbone, images)
        for form, fresh in found:
            backbone.weights.update(normrescale(own, anchor, **FORMS[form])[0])
            after = features(cfg, backbone, images, fresh)
            found[form, fresh].append(torch.cosine_similarity(before, after).mean().item())
    if not found['plain', False]:
        raise UserError(f'{folder} has no finished runs of LARS and SGD; run worth.yaml first, and give its folder')
    rows = [(form, [spread(found[form, fresh]) for fresh in (False, True)]) for form in FORMS]
    print_table(('statistics as they were', 'fresh statistics'), rows, 'cosine with the features before', head='form')


def features(cfg, backbone, images: list[Tensor], fresh: bool = False) -> Tensor:
    """Return the features of all images, with batch norm's statistics measured on them before where they are `fresh`."""
    network = load_backbone(cfg, backbone)
    if fresh:
        refresh_statistics(network, iter(images))
    network.eval()
    with torch.inference_mode():
        return torch.cat([pooled(network(batch)) for batch in images])


def spread(values: list[float]) -> str:
    return f'{statistics.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})'


if __name__ == '__main__':
    main()
