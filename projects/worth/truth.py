"""Check the answers of `projects.worth` on synthetic domains against the truth, which is known from many labels.

    python -m projects.worth.truth --work-dir work_dirs/truth

`projects.worth` gives two answers for each domain, with different labels and different pre-trainings. The truth is the
accuracy of the same networks on new images, averaged over many draws of as many labels as the answer used. Stored results
are not computed again.
"""

import argparse
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from mmairl.apis.suggest import config_for
from mmairl.checkpoints.pickles import write_checkpoint
from mmairl.engine.run import register
from mmairl.errors import one_sentence_errors
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.embed import dataset_of
from mmairl.evaluation.features import Extraction
from mmairl.io import read_json, write_json
from mmairl.report.table import print_table
from projects.worth.domains import DOMAINS, SIDE, Domain, write_images
from projects.worth.domains import draw as drawn
from projects.worth.few_labels import MARGIN, classify_correctly, standardize
from projects.worth.worth import OWN, RANDOM, RAW, central, network, worth

SEEDS = (0, 1)
CROP, BATCH, STEPS = 24, 64, 225  # size of crops, batch and number of steps of each pre-training
FRESH, DRAWS = 1200, 20  # number of new images in each half, and number of draws of labels
SUPERVISED = 900  # training steps of the network that stands in for released weights
NORMAL = ('mean', 'std')
NAME = 'truth.json'
# These views are as weak as those of the demo: with stronger views, a training of this length learns only colors.
VIEW = [
    dict(type='RandomResizedCrop', size=CROP, scale=(0.2, 0.8)),
    dict(type='RandomFlip', p=0.5),
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    dict(type='RandomGrayscale', p=1.0),
]
OPTIONS = {
    'model.backbone.stem_channels': 16,
    'model.backbone.base_channels': 16,
    'model.projector.in_channels': 128,
    'model.projector.hidden_channels': 128,
    'model.projector.out_channels': 64,
    'model.predictor.in_channels': 64,
    'model.predictor.hidden_channels': 128,
    'model.predictor.out_channels': 64,
    'model.data_preprocessor.views': [VIEW, VIEW],
    'train_dataloader.dataset.views': None,
    'default_hooks.momentum.base': 0.9,
    'optim_wrapper.optimizer.lr': 0.3,
}


def truth(domain: Domain, seed: int, folder: Path, released: Path) -> None:
    """Store in the folder the answer of `worth` for a domain, and the true accuracy of each candidate."""
    out = folder / f'seed_{seed}'
    if (out / NAME).is_file():
        return
    y, new = np.arange(domain.images) % domain.classes, np.arange(2 * FRESH) % domain.classes
    names = write_images(folder / 'images', drawn(domain, y, seed=0))
    paths = write_images(folder / 'new', drawn(domain, new, seed=1))
    labels = with_faults(y[: domain.classes * domain.labels], domain, seed)
    table = folder / f'labels_{seed}.csv'
    table.write_text(
        '\n'.join(['name,class', *(f'{name},class {label}' for name, label in zip(names, labels))])
    )
    settings = dict(
        size=CROP,
        batch=BATCH,
        workers=0,
        seed=seed,
        epochs=max(1, round(STEPS * BATCH / domain.images)),
    )
    weights = [released] if domain.released else []
    record = worth(
        folder / 'images', table, out, weights=weights, options=OPTIONS, **settings
    ).record
    dataset, scores = dataset_of([folder / 'new' / name for name in paths], central(CROP)), {}
    for name, candidate in record['candidates'].items():
        x = features(name, dataset, candidate.get('checkpoint') or released, seed)
        scores[name] = many_draws(x, new, domain, seed)
    # After fewer than 100 epochs, `worth` never advises against pre-training. The verdict that ignores the length of the
    # training is therefore stored instead.
    summary = {key: record[key] for key in ('own', 'best', 'gain', 'low', 'high', 'more', 'answer')}
    write_json(out / NAME, dict(word=record['compared'], **summary, scores=scores))


def with_faults(y: np.ndarray, domain: Domain, seed: int) -> np.ndarray:
    """Replace the fraction `domain.wrong` of the labels by random classes."""
    random = np.random.default_rng(seed)
    wrong = random.random(len(y)) < domain.wrong
    return np.where(wrong, random.integers(0, domain.classes, len(y)), y)


def features(name: str, dataset: Dataset, checkpoint: str | Path, seed: int) -> np.ndarray:
    """Return a candidate's features of the new images."""
    if name == RAW:
        return np.stack(
            [dataset[place]['inputs'][0].numpy().ravel() for place in range(len(dataset))]
        ).astype(float)
    if name == RANDOM:
        cfg = config_for('mocov2plus', 1000, '.', OPTIONS, size=CROP)
        module, normal = (
            load_backbone(cfg, None, seed=seed),
            {k: cfg.model.data_preprocessor[k] for k in NORMAL},
        )
    else:
        module, normal, _ = network(checkpoint)
    batches = Extraction(**normal, batch_size=256).batches(module, dataset)
    return np.concatenate([x.numpy() for x, _, _ in batches]).astype(float)


def many_draws(x: np.ndarray, y: np.ndarray, domain: Domain, seed: int) -> float:
    """Return the accuracy in percent on half of the new images, averaged over draws of training labels.

    The training labels are labels of the other half of the new images, as many as `worth` had for training.
    """
    pool, test = np.arange(FRESH), np.arange(FRESH, 2 * FRESH)
    x, random = standardize(x, pool), np.random.default_rng(seed)
    labels = np.concatenate([with_faults(y[:FRESH], domain, seed), y[FRESH:]])
    classes = [pool[y[:FRESH] == label] for label in range(domain.classes)]
    fits = [
        np.concatenate([random.choice(rows, domain.labels // 2, False) for rows in classes])
        for _ in range(DRAWS)
    ]
    return 100 * float(np.mean([classify_correctly(x, labels, fit, test).mean() for fit in fits]))


def released_on_outlines(path: Path) -> Path:
    """Train a network of the same size to classify outlines that no domain contains, as a stand-in for released weights."""
    if path.is_file():
        return path
    cfg = config_for('mocov2plus', 1000, '.', OPTIONS, size=CROP)
    mean, std = (torch.tensor(cfg.model.data_preprocessor[key]).view(-1, 1, 1) for key in NORMAL)
    domain = Domain('released', 'outline', classes=12)
    y = torch.arange(SUPERVISED * BATCH // 10) % 12
    images = torch.from_numpy(drawn(domain, y.numpy(), seed=2)).permute(0, 3, 1, 2) / 255
    network = load_backbone(cfg, None, seed=0).requires_grad_(True)
    network.train()
    head = nn.Linear(128, 12)
    optimizer = torch.optim.SGD(
        [*network.parameters(), *head.parameters()], 0.1, 0.9, weight_decay=1e-4, nesterov=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, SUPERVISED)
    random = torch.Generator().manual_seed(0)
    for _ in range(SUPERVISED):
        rows = torch.randint(len(y), (BATCH,), generator=random)
        top, left = torch.randint(SIDE - CROP + 1, (2,), generator=random).tolist()
        batch = (images[rows, :, top : top + CROP, left : left + CROP] - mean) / std
        loss = F.cross_entropy(head(network(batch)[-1].mean((2, 3))), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    print(f'released network: loss {loss.item():.2f}')
    normal = {
        f'model.data_preprocessor.{key}': repr(list(cfg.model.data_preprocessor[key]))
        for key in NORMAL
    }
    settings = {
        **normal,
        'train_dataloader.dataset.views': repr([[dict(type='RandomCrop', size=CROP)]]),
    }
    write_checkpoint(dict(meta=dict(settings=settings), state_dict=network.state_dict()), path)
    return path


def report(folder: Path) -> None:
    """Print the stored answers next to the truth, and the number of right answers."""
    rows, count = [], Counter()
    for number, domain in enumerate(DOMAINS):
        answers = [
            read_json(path) for path in sorted((folder / f'{number:02}').glob(f'seed_*/{NAME}'))
        ]
        if not answers:
            continue
        means = {
            name: np.mean([answer['scores'][name] for answer in answers])
            for name in answers[0]['scores']
        }
        own_score, other_score = (
            max(v for k, v in means.items() if k.startswith(OWN) == mine) for mine in (True, False)
        )
        for answer in answers:
            fine = dict(pays=own_score > other_score, keep=own_score - other_score < MARGIN).get(
                answer['word']
            )
            mark = {True: 'right', False: 'wrong', None: 'not decided'}[fine]
            count[mark] += 1
            gain = f'{answer["gain"]:+.0f} [{answer["low"]:+.0f}, {answer["high"]:+.0f}]'
            more_labels = f'{answer["more"]:,}' if answer['more'] else ''
            truths = [f'{own_score:.0f}', f'{other_score:.0f}', mark]
            rows.append(
                (
                    domain.name,
                    [answer['word'], answer['own'], answer['best'], gain, *truths, more_labels],
                )
            )
    print_table(
        ['says', 'own', 'best other', 'gain', 'true own', 'true other', '', 'more labels'],
        rows,
        head='domain',
    )
    print(
        ', '.join(f'{count[mark]} {mark}' for mark in ('right', 'wrong', 'not decided')),
        f'of {count.total()}',
    )


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/truth'))
    parser.add_argument(
        '--only',
        nargs='*',
        type=int,
        default=range(len(DOMAINS)),
        help='run the domains with these indices, starting from 0 (default: all)',
    )
    args = parser.parse_args()
    register()
    warnings.simplefilter('ignore')
    released = released_on_outlines(args.work_dir / 'released.pth')
    for seed in SEEDS:
        for number in args.only:
            truth(DOMAINS[number], seed, args.work_dir / f'{number:02}', released)
    report(args.work_dir)


if __name__ == '__main__':
    main()
