"""Records of studies with planted results, in the form that mmairl.study.collect writes."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from mmairl.study.published import rows as published_rows
from mmairl.study.statistics.attribution import attribute
from mmairl.study.statistics.compare_rows import compare_scores, mean_intervals
from mmairl.study.statistics.designs import Design

COLUMNS = ('in1k', 'voc07_ap50', 'cityscapes_miou')
PUBLISHED = {
    name: {key: row[key] for key in COLUMNS if key in row}
    for table in ('table1_ladder', 'table2_optimizer_crossover')
    for name, row in published_rows(f'revisit_airl.{table}').items()
}
NOISE = ((-0.4, 0.1, 0.3), (0.2, -0.5, 0.3), (0.1, 0.3, -0.4))
Record = dict[str, Any]


def run(seed: int, folder: str = 'runs/x', **scores: float) -> Record:
    return dict(
        seed=seed,
        state='done',
        error=None,
        scores=scores,
        folder=f'{folder}/seed_{seed}',
        checkpoint='epoch_30.pth',
        sha256='0123456789abcdef' * 4,
        seconds=118.2 + seed,
        images_seen=360000,
        git='b34afd9',
        versions={'torch': '2.11.0'},
        hardware='CPU (x86_64)',
        config_text=f'randomness.seed: {seed}\n',
        start=dict(weights='a', shapes='b', order=f'{seed}'),
    )


def row(name: str, runs: list[Record], on: str | None = None, **changes: Any) -> Record:
    usual = dict(config='c.py', factor='a factor' if on else '', changed=['model'], group=None, x=None, published={})
    return {**usual, **changes, 'name': name, 'on': on, 'runs': runs}


def study(rows: list[Record], metrics: Sequence[str] = ('k-NN', 'linear'), **changes: Any) -> Record:
    printed = dict.fromkeys(key for row in rows for key in row['published'])
    record = dict(
        name='ladder',
        title='One factor at a time',
        question='Which details make the difference?',
        paper=dict(where='Tab. 1'),
        scale=dict(name='demo', text='small networks'),
        seeds=[0, 1, 2],
        metrics=[dict(key=label.lower(), label=label, unit='%') for label in metrics],
        published_metrics=[dict(key=key, label=key) for key in printed],
        figure=dict(kind='bars'),
        rows=rows,
        fairness={},
        reading='First.\n\nSecond.',
    )
    scores = [metric['key'] for metric in record['metrics']]
    record['comparisons'] = {key: [asdict(one) for one in compare_scores(record, key, 1.0)] for key in scores}
    record['intervals'] = {key: mean_intervals(record, key) for key in scores}
    return {**record, **changes}


def scored(name: str, place: int, level: float, on: str | None = None, **changes: Any) -> Record:
    """Return a row of three seeds. Its k-NN scores are close to `level`, its linear scores are close to `level` + 4."""
    noise = NOISE[place % 3]
    runs = [run(s, f'runs/{place}', **{'k-nn': level + n, 'linear': level + 4 - n}) for s, n in enumerate(noise)]
    return row(name, runs, on, **changes)


def steps(*steps: tuple[str, float, float], seeds: int = 5, **changes: Any) -> Record:
    """Return the record of a study in which each row builds on the previous one.

    Each of the `steps` has the name of a row, its effect on the k-NN score, and the standard deviation of this effect
    over seeds.
    """
    draw = np.random.default_rng(0)
    scores = 40 + draw.normal(0, 2, seeds)
    rows = []
    for number, (name, effect, spread) in enumerate(steps):
        noise = draw.normal(0, 1, seeds)
        noise = (noise - noise.mean()) / (noise.std() or 1)
        scores = scores + effect + spread * noise
        runs = [run(s, f'runs/{number}', **{'k-nn': float(score)}) for s, score in enumerate(scores)]
        rows.append(row(name, runs, rows[-1]['name'] if rows else None, factor=f'{name} is added' if rows else ''))
    changes = dict(seeds=list(range(seeds)), fairness=fair(rows)) | changes
    return study(rows, ('k-NN',), **changes)


def fair(rows: Sequence[Record]) -> Record:
    before = [
        dict(row=row['name'], on=row['on'], declared=['model'], found=['model'], undeclared=[])
        for row in rows
        if row['on']
    ]
    same = {row['name']: 360000 for row in rows}
    code = {row['name']: 'b34afd9' for row in rows}
    after = [dict(check='images seen', equal=True, values=same), dict(check='code', equal=True, values=code)]
    return dict(before=before, after=after, hidden=[])


def one_decided() -> Record:
    return steps(('base', 0, 0), ('+ predictor', 0.1, 0.3), ('+ symmetric loss', 8.2, 0.9), ('+ crop', 0.5, 3.0))


def all_inconclusive() -> Record:
    return steps(('base', 0, 0), ('+ predictor', 1.5, 3.0), ('+ symmetric loss', 4.5, 5.0))


def all_equivalent() -> Record:
    return steps(('base', 0, 0), ('+ predictor', 0.1, 0.2), ('+ symmetric loss', -0.1, 0.2))


def one_seed() -> Record:
    return steps(('base', 0, 0), ('+ predictor', 9.5, 0), ('+ symmetric loss', 2.0, 0), seeds=1)


def confounded() -> Record:
    """Return a study whose largest effect is that of a row with an undeclared change."""
    record = steps(('base', 0, 0), ('+ predictor', 12.0, 0.9), ('+ symmetric loss', 3.0, 0.6), ('+ crop', 0.2, 0.3))
    record['fairness']['before'][0]['undeclared'] = ['optim_wrapper.optimizer.lr']
    return record


def collapsed() -> Record:
    """Return a study in which two runs of a row have collapsed, and the next row builds on this row."""
    record = steps(('base', 0, 0), ('BYOL loss', -1.0, 1.0), ('+ large batch', 8.6, 1.0), ('+ crop', 2.0, 0.4))
    for one in record['rows'][1]['runs'][:2]:
        one['scores']['k-nn'] = 5.0
    return study(record['rows'], ('k-NN',), seeds=record['seeds'], fairness=record['fairness'])


def unfinished() -> Record:
    """Return a study of which some runs have failed, are running, or have not started."""
    record = steps(('base', 0, 0), ('+ predictor', 6.0, 0.5), ('+ symmetric loss', 2.0, 0.8))
    last = record['rows'][-1]['runs']
    last[4] = dict(seed=4, state='failed', error='the loss became NaN at step 310', folder='runs/2/seed_4')
    last[3] = dict(seed=3, state='running', error='training 12 %', folder='runs/2/seed_3')
    del last[2]
    return study(record['rows'], ('k-NN',), seeds=record['seeds'], fairness=record['fairness'])


def sequential() -> Record:
    words = 'seeds are added until every comparison is decided; the study is analyzed at 3, 5 and 8 seeds per row'
    looks = ['analysis at 3 seeds: no decision', 'analysis at 5 seeds: + symmetric loss higher']
    return one_decided() | dict(sequential=dict(words=words, looks=looks))


def costly() -> Record:
    """Return a study with published scores and with the cost of each row. The symmetric loss doubles the compute."""
    record = steps(
        ('MoCo v2', 0, 0),
        ('+ SyncBN', 0.6, 1.5),
        ('+ symmetric loss', 8.2, 0.9),
        ('+ complex augmentation', 0.4, 2.0),
    )
    names = ('mocov2', 'plus_syncbn', 'plus_symmetric_loss', 'plus_complex_augmentation')
    for one, name in zip(record['rows'], names):
        one['published'] = PUBLISHED[name]
    keys = dict.fromkeys(key for one in record['rows'] for key in one['published'])
    rows = {row['name']: dict(images=1e5, flops=1e15, device_seconds=120.0) for row in record['rows']}
    rows['+ symmetric loss']['flops'] = 2e15
    rows['+ complex augmentation']['flops'] = 2e15
    published = [dict(key=key, label=key) for key in keys]
    return record | dict(published_metrics=published, cost=dict(rows=rows, equal={}))


def two_factors(effects: tuple[float, float, float] = (8.0, 0.1, 0.0), runs: int = 4) -> Record:
    """Return a full factorial study of two factors. `effects` contains the effect of each factor, and the interaction."""
    draw = np.random.default_rng(1)
    rows = []
    for first in (0, 1):
        for second in (0, 1):
            level = 40 + effects[0] * first + effects[1] * second + effects[2] * first * second
            scores = level + draw.normal(0, 0.3, runs)
            runs_of_row = [run(s, f'runs/{first}{second}', **{'k-nn': float(v)}) for s, v in enumerate(scores)]
            name = f'{("one way", "symmetric")[first]}, {("no predictor", "predictor")[second]}'
            rows.append(row(name, runs_of_row, rows[0]['name'] if rows else None))
    levels = {one['name']: (number // 2, number % 2) for number, one in enumerate(rows)}
    design = Design(('symmetric loss', 'predictor'), levels)
    record = study(rows, ('k-NN',), seeds=list(range(runs)), fairness=fair(rows))
    record['design'] = dict(asdict(design), words=design.words)
    record['attribution'] = {'k-nn': attribute(record, 'k-nn', 1.0)}
    return record


def external() -> Record:
    """Return a study of two rows of external checkpoints. The authors of one row do not state all factors."""
    record = steps(('ours', 0, 0), ('theirs', 3.0, 0.4), seeds=3)
    for one in record['rows']:
        one['given'] = True
    record['fairness']['before'][0] |= dict(unknown=['optimizer', 'batch size'])
    return record


def ladder() -> Record:
    """Return a study with four rows of three seeds. One run is missing, and one has failed."""
    names = ('mocov2', 'plus_syncbn', 'plus_symmetric_loss', 'plus_complex_augmentation')
    levels = (66.1, 66.4, 72.6, 72.1)
    rows = [scored(n, i, levels[i], names[i - 1] if i else None, published=PUBLISHED[n]) for i, n in enumerate(names)]
    for one in (one for row in rows for one in row['runs']):
        one['curves'] = {'loss': [[20, 40], [6.0, 3.0]], 'instance_accuracy': [[20, 40], [0.2, 0.7]]}
    rows[1]['runs'][1] = dict(seed=1, state='missing', folder='runs/1/seed_1')
    rows[3]['runs'][2] = dict(seed=2, state='failed', error='the loss became\nnan at step 310', folder='runs/3/seed_2')
    fairness = fair(rows)
    fairness['before'][0]['undeclared'] = ['optim_wrapper.lr']
    code = {'mocov2': 'b34afd9', 'plus_syncbn': 'b34afd9 with changes'}
    fairness['after'][1] = dict(check='code', equal=False, values=code)
    fairness['after'].append(dict(check='software', equal=True, values=dict(mocov2='torch 2.11.0')))
    fairness['hidden'] = [
        dict(check='precision', equal=True, values=dict.fromkeys(names, 'bfloat16')),
        dict(check='rate', equal=False, values=dict(mocov2='outside', plus_syncbn='inside')),
    ]
    return study(rows, fairness=fairness)


def drawn_as_lines() -> Record:
    """Return a study of two methods, each pre-trained for 100, 300 and 1 000 epochs."""
    rows = []
    for group in ('MoCo v2+', 'BYOL'):
        for place, x in enumerate((100, 300, 1000)):
            name = f'{group}, {x} epochs'
            printed = dict(in1k=70.0 + place)
            rows.append(scored(name, place, 69 + math.log(x), group=group, x=x, published=printed))
    return study(rows, figure=dict(kind='lines', x='epochs'))


def tiny(**values: tuple[float, ...]) -> Record:
    """Return a study of k-NN scores. The name of each argument is that of a row, and its values are the scores of the
    row's seeds.

    Each row builds on the previous one.
    """
    rows = []
    for name, line in values.items():
        runs = [run(s, **{'k-nn': v}) for s, v in enumerate(line)]
        rows.append(row(name, runs, rows[-1]['name'] if rows else None))
    return study(rows, ('k-NN',), seeds=[])


def effect(name: str, verdict: str, estimate: float | None, half: float | None = None, aliases=()) -> Record:
    low, high = (None, None) if half is None else (estimate - half, estimate + half)
    factors = tuple(name.split(' × '))
    entry = dict(name=name, factors=factors, asked=len(factors) == 1, aliases=aliases)
    return dict(entry, verdict=verdict, estimate=estimate, low=low, high=high)


def crossed() -> Record:
    """Return the record of `ladder` with the effects of a factorial design.

    Some verdicts are words of an earlier version.
    """
    effects = [
        effect('predictor', 'equivalent', 0.2, 0.5),
        effect('momentum <ascending>', 'differs', 8.0, 2.0, ('−predictor × symmetric loss',)),
        {**effect('symmetric loss', 'differs', -1.0, 2.5), 'collapsed': (9, 1), 'share': 0.0123},
        effect('predictor × symmetric loss', 'not estimable: runs are missing', None),
        effect('momentum <ascending> × symmetric loss', 'undecided', 1.5, 2.0),
    ]
    shares = [
        dict(factor=name, estimate=value, low=value - 2, high=value + 2)
        for name, value in (('predictor', 0.2), ('momentum', 8.0))
    ]
    attribution = dict(
        margin=1.0,
        runs=23,
        blocks=True,
        effects=effects,
        shares=shares,
        exact=False,
        alone=['a, seed 1'],
        gain=dict(factor='all factors', estimate=8.2, low=None, high=None),
    )
    record = {
        **ladder(),
        'design': dict(words='a half-fraction of resolution III'),
        'attribution': {'k-nn': attribution},
    }
    record['fairness']['before'][0]['undeclared'] = []
    return record


def rescaled() -> Record:
    """Return a study in which the runs of SGD and LARS are the best trials of searches, and two rows rescale the weights
    of LARS.

    The record has search curves of many rows. Its verdicts are words of an earlier version.
    """
    record = tiny(SGD=(50.0, 52.0), LARS=(60.0, 61.0), rescaled=(60.0, 62.0), constant=(60.0, 62.0))
    sources = (dict(chosen={}), dict(chosen={}), *[dict(of='LARS', constant=None)] * 2)
    for row, origin in zip(record['rows'], sources):
        row['untrained'] = None
        for one in row['runs']:
            one['made'] = origin
    # This best trial has the published settings. Its run is a copy of the published run, so its
    # training took no time.
    record['rows'][1]['runs'][1]['seconds'] = 0.0
    for comparison in record['comparisons']['k-nn']:
        comparison.update(verdict='runs collapsed: no verdict by the mean', share=0.4)
    trials = [trial(0, number, number, 50.0) for number in range(4)]
    names = ('SGD', 'LARS', *(f'LARS, rescaled by {n}' for n in range(9)))
    search = dict(
        criterion='k-nn',
        budget=4.0,
        margin=1.0,
        searches=1,
        dimensions={},
        counts=dict(SGD=4),
        rows=dict(SGD=trials),
        curves={name: [dict(estimate=40.0 + n) for n in range(4)] for name in names},
        forgiving={},
        edges=[],
    )
    published = dict(rows=[dict(row, runs=[]) for row in record['rows']], comparisons=record['comparisons'])
    return {**record, 'search': search, 'as_published': published}


def trial(search: int, number: int, rate: float, score: float | None, diverged: str = '') -> Record:
    entry = dict(search=search, trial=number, folder=f'trials/{search}/{number}', state='done', seconds=9.0)
    return dict(entry, values=dict(rate=rate), score=score, diverged=diverged)


def tuned() -> Record:
    """Return a study whose runs are the best trials of two searches with equal budgets. LARS is better than SGD."""
    record = steps(('SGD', 0, 0), ('LARS', 9.0, 0.5), seeds=3)
    trials = [trial(0, 0, 0.1, 40.0), trial(0, 1, 0.8, 50.0) | dict(chosen=True)]
    for one in record['rows']:
        one['untrained'] = None
    search = rescaled()['search'] | dict(counts=dict(SGD=2, LARS=0), rows=dict(SGD=trials, LARS=[]))
    published = dict(rows=[dict(row, runs=[]) for row in record['rows']], comparisons={})
    return record | dict(search=search, as_published=published)


def forked() -> Record:
    """Return a study of a row (the trunk) and two rows whose runs branch off halfway from the runs of the trunk.

    One of these two rows changes the weight decay by a negligible amount (an A/A test), the other one changes the
    temperature.
    """
    record = steps(('trunk', 0, 0), ('again', 0.0, 0.2), ('warmer', -2.0, 0.5))
    for one, decay, temperature in zip(record['rows'], (1e-4, 1e-4 + 1e-13, 1e-4), (0.2, 0.2, 0.4)):
        one['changed'] = ['temperature' if one['name'] == 'warmer' else 'decay']
        for branch in one['runs']:
            branch['config_text'] = f'decay: {decay!r}\ntemperature: {temperature}\n'
    for one in record['rows'][1:]:
        one['fork'] = dict(of='trunk', at=0.5, epoch=6)
        one['on'] = 'trunk'
    noise = np.array([1.0, -1.0, 0.5, -0.5, 0.0]) / np.std([1.0, -1.0, 0.5, -0.5, 0.0], ddof=1)
    for trunk, warmer, value in zip(record['rows'][0]['runs'], record['rows'][2]['runs'], noise):
        warmer['scores']['k-nn'] = trunk['scores']['k-nn'] - 2 + 0.5 * value
    return study(record['rows'], ('k-NN',), seeds=record['seeds'], fairness=record['fairness'])
