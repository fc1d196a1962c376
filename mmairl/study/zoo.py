"""The model zoo: every pre-training config with what the papers print of it, as OpenMMLab's metafiles and as a page.

`python -m mmairl.study.zoo` writes `model-index.yml`, the metafiles and `docs/model_zoo.md`, and a test holds them to the
configs, the studies and `published.yaml`. There are no weights: nothing was trained at this size here, and every number says
that it is published.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from mmengine.config import Config

from mmairl.configs import home
from mmairl.engine.launch import load_config
from mmairl.study.published import tables
from mmairl.study.spec import read_study

AIRL = 'Revisiting the Critical Factors of Augmentation-Invariant Representation Learning'
BYOL = 'Bootstrap Your Own Latent: A New Approach to Self-Supervised Learning'
MSBREG = 'An Embedding-Dynamic Approach to Self-supervised Learning'
SHORT = {'revisit_airl': 'AIRL', 'byol': 'BYOL', 'msbreg': 'MSBReg, supplement'}
# Where pre-training configs are. Evaluation, transfer and the demo are no models of the zoo; configs/fast/ trains the same.
FOLDERS = ('configs', *(f'configs/{name}' for name in ('architectures', 'augmentation', 'data_variation', 'large')))
FOLDERS += ('configs/longer', 'configs/supervised', 'configs/vit')
FOLDERS += ('projects/byol_variants/configs', 'projects/msbreg/configs')
# A collection by the beginning of its configs' names; projects are collections of their own.
COLLECTIONS = {
    'mocov1': ('MoCo v1', 'Momentum Contrast for Unsupervised Visual Representation Learning'),
    'mocov2_': ('MoCo v2', 'Improved Baselines with Momentum Contrastive Learning'),
    'mocov2plus': ('MoCo v2+', AIRL),
    'smocov2plus': ('S-MoCo v2+', AIRL),
    'byol': ('BYOL', BYOL),
    'supervised': ('Supervised', 'Deep Residual Learning for Image Recognition'),
    'projects/byol_variants': ('BYOL variants', BYOL),
    'projects/msbreg': ('MSBReg', MSBREG),
}
IN1K, COCO = 'ImageNet-1k', 'COCO 2017, Mask R-CNN'
# What a column of published.yaml measures: task, data set, metric.
COLUMNS = {
    'in1k': ('Image Classification', f'{IN1K}, linear', 'Top 1 Accuracy'),
    'top1': ('Image Classification', f'{IN1K}, linear', 'Top 1 Accuracy'),
    'top5': ('Image Classification', f'{IN1K}, linear', 'Top 5 Accuracy'),
    'coco_c4_box': ('Object Detection', f'{COCO} C4', 'box AP'),
    'coco_c4_mask': ('Instance Segmentation', f'{COCO} C4', 'mask AP'),
    'coco_fpn_box': ('Object Detection', f'{COCO} FPN', 'box AP'),
    'coco_fpn_mask': ('Instance Segmentation', f'{COCO} FPN', 'mask AP'),
    'cityscapes_miou': ('Semantic Segmentation', 'Cityscapes', 'mIoU'),
    **{
        f'{data}_ap{level}': ('Object Detection', f'PASCAL {name}', f'AP{level}')
        for data, name in (('voc07', 'VOC 07'), ('voc0712', 'VOC 07+12'))
        for level in ('', 50, 75)
    },
}
NO_SCORES = ('asymmetric', 'alignment', 'uniformity', 'predictor', 'target', 'beta')
# Published rows that no study asks for: config, table, row, and the data set where it is not ImageNet.
ALSO = (
    ('configs/byol_lars_r50_200e.py', 'revisit_airl.table1_ladder', 'byol', None),
    *(
        (f'configs/architectures/byol_lars_{short}_1000e.py', 'byol.table1_linear_in1k', row, None)
        for short, row in (
            ('r50', 'resnet50'),
            ('r50_2x', 'resnet50x2'),
            ('r50_4x', 'resnet50x4'),
            ('r200_2x', 'resnet200x2'),
        )
    ),
    (
        'projects/msbreg/configs/msbreg_k4_r18_in100_320e.py',
        'msbreg.sup_table3_imagenet100_resnet18',
        'msbreg_k4',
        'ImageNet-100',
    ),
    ('projects/msbreg/configs/msbreg_k4_ln_r18_stl10_320e.py', 'msbreg.sup_table4_stl10', 'msbreg_ln_best', 'STL-10'),
)
HEADER = """# Model zoo

Every pre-training config but the demo's, and those of `configs/fast/`, which train the same, by what it trains. The numbers are
**published**, each with the table that prints it (`AIRL` is *Revisiting the Critical Factors of Augmentation-Invariant
Representation Learning*, `BYOL` and `MSBReg` those papers). Nothing was trained at this size here, so *measured* is blank and
there are no weights to load. [Frameworks](frameworks.md) has what each config changes, and [reproducing the
papers](reproduce.md) the commands. Top-1 is of linear evaluation on the data's own labels, VOC 07 is AP50, COCO C4 the box AP
of Mask R-CNN, Cityscapes mIoU, all in percent; where tables print two numbers of one config, both are here.

The page and the metafiles (`model-index.yml`) are written by `python -m mmairl.study.zoo` from the configs, the studies and
`mmairl/study/published.yaml`; a test keeps them so. Any config is inherited by its name, wherever mmairl is installed:
`_base_ = 'mmairl::longer/byol_lars_r50_300e.py'`.
"""


@dataclass(frozen=True)
class Number:
    """One published number, and every table that prints it."""

    task: str
    dataset: str
    metric: str
    value: float
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """One config of the zoo."""

    config: str
    collection: str
    metadata: dict[str, Any]
    published: tuple[Number, ...] = field(default=())

    @property
    def name(self) -> str:
        """The file's, which tells configs apart, after the project's and after `large`, where one has a smaller sister's."""
        parts = Path(self.config).with_suffix('').parts
        return f'{parts[1]}_{parts[-1]}' if parts[0] == 'projects' or parts[1] == 'large' else parts[-1]


def entries() -> list[Entry]:
    """Every pre-training config at full size, with its published numbers."""
    root, printed = home(), published()
    found = []
    for folder in FOLDERS:
        for path in sorted((root / folder).glob('*.py')):
            cfg = load_config(str(path))
            if 'model' in cfg and not _drawn(cfg):
                config = path.relative_to(root).as_posix()
                found.append(Entry(config, _collection(config), _metadata(cfg), tuple(printed.pop(config, ()))))
    assert not printed, f'published, but in no folder of the zoo: {", ".join(printed)}'
    order = [name for name, _ in COLLECTIONS.values()]
    return sorted(found, key=lambda entry: order.index(entry.collection))


def _drawn(cfg: Config) -> bool:
    return 'Shapes' in str(cfg.train_dataloader.dataset)


def _collection(config: str) -> str:
    stem = Path(config).stem
    return next(
        name
        for begins, (name, _) in COLLECTIONS.items()
        if config.startswith(f'{begins}/') or _is(config, stem, begins)
    )


def _is(config: str, stem: str, begins: str) -> bool:
    return config.startswith('configs/') and stem.startswith(begins)


def _metadata(cfg: Config) -> dict[str, Any]:
    length = cfg.train_cfg.get('max_epochs')
    time = {'Epochs': length} if length else {'Iterations': cfg.train_cfg.max_iters}
    return {**time, 'Batch Size': cfg.total_batch_size, 'Training Data': _training_data(cfg.train_dataloader.dataset)}


def _training_data(dataset: dict) -> str:
    """The images in words: their folder, and the part of them or the labels that a wrapper takes."""
    if dataset['type'] == 'ClassSubset':
        return f'{_training_data(dataset["dataset"])}, {dataset["fraction"]:.0%} of the classes'
    if dataset['type'] == 'Relabelled':
        return f'{_training_data(dataset["dataset"])}, relabelled ({dataset["groups"]})'
    folder = str(dataset['root']).removeprefix('data/').split('/')[0]
    known = {'imagenet': IN1K, 'imagenet100': 'ImageNet-100', 'stl10': 'STL-10 unlabelled', 'images': 'your own images'}
    return known[folder]


def published() -> dict[str, list[Number]]:
    """What the papers print of a config, by its path; a number that two tables print is one with two sources."""
    merged: dict[str, dict[tuple, list[str]]] = defaultdict(lambda: defaultdict(list))
    for config, source, numbers, dataset in _printed():
        for column, value in numbers.items():
            if column in NO_SCORES:
                continue
            task, usual, metric = COLUMNS[column]
            sources = merged[config][task, dataset or usual, metric, float(value)]
            if source not in sources:
                sources.append(source)
    return {
        config: [Number(*what, tuple(sources)) for what, sources in numbers.items()]
        for config, numbers in merged.items()
    }


def _printed() -> Iterator[tuple[str, str, dict[str, float], str | None]]:
    """Each published row that belongs to a config as it stands: config, table, numbers, data set."""
    root = home()
    studies = map(read_study, sorted((root / 'configs' / 'studies').glob('*.yaml')))
    for study in sorted(studies, key=lambda study: study.paper.get('table', '')):
        for row in study.rows:
            if row.published and not row.rescaled and not row.options:
                config = row.config if row.config.startswith('projects/') else f'configs/{row.config}'
                yield config, _source(row.table), row.published, None
    for config, table, name, dataset in ALSO:
        paper, part = table.split('.')
        row = tables()[paper][part][name]
        yield config, _source(table), row if isinstance(row, dict) else {'top1': row}, dataset


def _source(table: str) -> str:
    """`revisit_airl.table1_ladder` as 'AIRL Tab. 1'."""
    paper, part = table.split('.')[:2]
    return f'{SHORT[paper]} Tab. {part.removeprefix("sup_").removeprefix("table").split("_")[0]}'


def metafiles(found: list[Entry]) -> dict[str, dict]:
    """`model-index.yml` and the metafiles that it imports, by their paths."""
    files: dict[str, dict] = {}
    for entry in found:
        top = 'configs' if entry.config.startswith('configs/') else '/'.join(entry.config.split('/')[:2])
        content = files.setdefault(f'{top}/metafile.yml', {'Collections': [], 'Models': []})
        content['Models'].append(_model(entry))
        if entry.collection not in [known['Name'] for known in content['Collections']]:
            content['Collections'].append(_collection_record(entry.collection))
    return {'model-index.yml': {'Import': list(files)}, **files}


def _collection_record(name: str) -> dict[str, Any]:
    title = next(title for known, title in COLLECTIONS.values() if known == name)
    return {'Name': name, 'Paper': {'Title': title}, 'README': 'docs/model_zoo.md'}


def _model(entry: Entry) -> dict[str, Any]:
    record = {
        'Name': entry.name,
        'In Collection': entry.collection,
        'Config': entry.config,
        'Metadata': entry.metadata,
    }
    results = [
        {
            'Task': number.task,
            'Dataset': number.dataset,
            'Metrics': {number.metric: number.value},
            'Published': True,
            'Source': ', '.join(number.sources),
        }
        for number in entry.published
    ]
    return {**record, 'Results': results} if results else record


# The columns that the page has room for; all numbers are in the metafiles.
SHOWN = {'top-1': 'Top 1 Accuracy', 'VOC 07': 'voc07_ap50', 'COCO C4': 'coco_c4_box', 'Cityscapes': 'cityscapes_miou'}


def page(found: list[Entry]) -> str:
    """The zoo as Markdown: a table for each collection."""
    lines = [HEADER]
    columns = ['config', *SHOWN, 'printed in', 'measured', 'epochs', 'batch', 'data']
    for name in dict.fromkeys(entry.collection for entry in found):
        lines += [f'## {name}\n', f'| {" | ".join(columns)} |', '|---' * len(columns) + '|']
        lines += [_line(entry) for entry in found if entry.collection == name]
        lines.append('')
    return '\n'.join(lines).rstrip() + '\n'


def _line(entry: Entry) -> str:
    time, batch, data = entry.metadata.values()
    length = f'{time}' if 'Epochs' in entry.metadata else f'{time} steps'
    shown = {name: [n for n in entry.published if _in_column(n, what)] for name, what in SHOWN.items()}
    numbers = [' / '.join(f'{n.value:.1f}' for n in found) for found in shown.values()]
    sources = dict.fromkeys(source for found in shown.values() for n in found for source in n.sources)
    name = f'`{entry.config.removeprefix("configs/")}`'
    cells = (name, *numbers, ' / '.join(sources), '', length, str(batch), data)
    return ''.join(f'| {cell} ' if cell else '| ' for cell in cells) + '|'


def _in_column(number: Number, what: str) -> bool:
    asked = COLUMNS.get(what)
    return number.metric == what if asked is None else (number.task, number.dataset, number.metric) == asked


def main() -> None:
    found = entries()
    for path, content in metafiles(found).items():
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=130)
        (home() / path).write_text('# Written by: python -m mmairl.study.zoo\n' + text)
    (home() / 'docs' / 'model_zoo.md').write_text(page(found))


if __name__ == '__main__':
    main()
