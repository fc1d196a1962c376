"""The paper's mechanism at the size of a laptop: LARS leaves long weights, long weights fine-tune badly, NormRescale repairs.

python projects/normrescale/mechanism.py [--folder work_dirs/mechanism]

Pre-trains one network with SGD and one with LARS on Shapes (unless their checkpoints are in the folder), measures norms, CKA
and k-NN, fine-tunes each, and the LARS one after NormRescale, at a grid of rates and several seeds, and prints what came out.
About twenty minutes on two cores; what is finished is not done again.
"""

import argparse
import copy
import statistics
from pathlib import Path

from mmengine import Config

from mmairl.analysis.cka import stage_cka
from mmairl.analysis.images import Images
from mmairl.configs import load_config
from mmairl.engine.launch import register, train
from mmairl.errors import one_sentence_errors
from mmairl.evaluation.by_training import train_and_test
from mmairl.evaluation.identity import claim, config_identity
from mmairl.evaluation.protocol import evaluate, settings_for
from mmairl.evaluation.recipes import recipe_of
from mmairl.report.figures import norm_lines, save_figure
from mmairl.report.table import print_table, save_table
from mmairl.weights.norms import typical_growth, weight_norms
from mmairl.weights.read import read_backbone

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
LABELLED = 1200  # images to fine-tune on, a tenth of what pre-training saw without labels


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--folder', type=Path, default=Path('work_dirs/mechanism'))
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1, 2], help='of fine-tuning')
    parser.add_argument('--rates', type=float, nargs='+', default=RATES)
    parser.add_argument('--epochs', type=int, default=5, help='of fine-tuning, 9 steps each')
    parser.add_argument('--pretrain-seed', type=int, default=1)
    parser.add_argument('--workers', type=int, default=0)
    return parser.parse_args()


def pretrained(name: str, folder: Path, seed: int) -> str:
    """The checkpoint of one optimizer's run, trained now if it is not there."""
    cfg = load_config(str(HERE / 'configs' / f'{name}_shapes.py'))
    checkpoint = folder / name / f'epoch_{cfg.train_cfg.max_epochs}.pth'
    if not checkpoint.is_file():
        cfg.work_dir, cfg.randomness.seed = str(folder / name), seed
        train(cfg)
    return str(checkpoint)


def starts(sgd: str, lars: str) -> dict[str, dict | None]:
    """Return the weights that fine-tuning begins from, by name."""
    rescaled = dict(type='NormRescaled', checkpoint=lars)
    return {
        'random': None,
        'SGD': dict(type='PretrainedBackbone', checkpoint=sgd),
        'LARS': dict(type='PretrainedBackbone', checkpoint=lars),
        'LARS, NormRescale by SGD': dict(**rescaled, anchor=sgd),
        'LARS, NormRescale by 0.1': dict(**rescaled, constant=0.1),
    }


def fine_tuned(cfg: Config, name: str, start: dict | None, rate: float, seed: int, args: argparse.Namespace) -> float:
    """Test top-1 of one fine-tuning run."""
    recipe = copy.deepcopy(recipe_of(cfg, 'finetune'))
    recipe.optim_wrapper.optimizer.lr, recipe.randomness.seed = rate, seed
    recipe.train_cfg.max_epochs = recipe.param_scheduler[0].end = args.epochs
    recipe.default_hooks.checkpoint.interval = args.epochs
    folder = (
        args.folder / f'finetune{args.epochs}' / name.replace(', ', '_').replace(' ', '_') / f'lr{rate:g}_seed{seed}'
    )
    claim(folder, dict(start=config_identity(start), recipe=config_identity(recipe)))
    return train_and_test(cfg, recipe, start, folder, False, args.workers, 'none')[0]['top-1']


def show(title: str, header: list[str], rows: list[list[str]]) -> None:
    print_table(header[1:], [(name, cells) for name, *cells in rows], title, head=header[0])


@one_sentence_errors
def main() -> None:
    args = parse_args()
    register()
    sgd, lars = (pretrained(name, args.folder, args.pretrain_seed) for name in ('sgd', 'lars'))
    describe(sgd, lars, args)
    cfg = load_config(str(ROOT / 'configs/evaluation/shapes_r18.py'))
    cfg.evaluation.train.count = LABELLED
    by_rate = {
        name: {rate: [fine_tuned(cfg, name, start, rate, seed, args) for seed in args.seeds] for rate in args.rates}
        for name, start in starts(sgd, lars).items()
    }
    rows = [[name, *(spread(runs) for runs in of.values())] for name, of in by_rate.items()]
    title = f'fine-tuning on {LABELLED} labels, {args.epochs} epochs: top-1 of {len(args.seeds)} seeds, by rate'
    show(title, ['start', *(f'{rate:g}' for rate in args.rates)], rows)
    save_table(
        ('start', 'rate', *(f'seed {seed}' for seed in args.seeds)),
        [(name, rate, *runs) for name, of in by_rate.items() for rate, runs in of.items()],
        args.folder / f'finetune{args.epochs}',
    )
    best = max(args.rates, key=lambda rate: statistics.mean(by_rate['SGD'][rate]))
    print(f'at {best:g}, the rate that suits the SGD-trained network best:')
    for name, of in by_rate.items():
        print(f'  {name}: {spread(of[best])}')


def describe(sgd: str, lars: str, args: argparse.Namespace) -> None:
    """Norms, k-NN and CKA of the two networks, and Fig. 3a."""
    cfg = load_config(str(HERE / 'configs/sgd_shapes.py'))
    rows = []
    for name, path in (('SGD', sgd), ('LARS', lars)):
        knn = evaluate(cfg, 'knn', path, settings=settings_for('knn', ks=[20], cache=args.folder / 'features')).scores
        growth = typical_growth(read_backbone(path).weights)
        rows.append([name, f'{growth:.2f}', f'{next(iter(knn.values())):.1f}'])
    show('pre-trained', ['optimizer', 'norm of a 3x3 convolution over its start', 'k-NN, k = 20'], rows)
    lines = {name: weight_norms(read_backbone(path).weights, kernel=3) for name, path in (('SGD', sgd), ('LARS', lars))}
    save_figure(norm_lines(lines, 'norms of the 3x3 convolutions'), args.folder / 'norms')
    images = Images(cfg, count=1000)
    values, stages, _ = stage_cka(images.network(sgd, 'student'), images.network(lars, 'student'), images)
    show('CKA of SGD and LARS', ['stage', 'CKA'], [[s, f'{v:.3f}'] for s, v in zip(stages, values.diagonal().tolist())])


def spread(runs: list[float]) -> str:
    deviation = f' ± {statistics.stdev(runs):.1f}' if len(runs) > 1 else ''
    return f'{statistics.mean(runs):.1f}{deviation}'


if __name__ == '__main__':
    main()
