"""Write model cards for converted weights: Markdown files with metadata that model hubs read."""

from pathlib import Path
from typing import Any

import yaml

from mmairl.checkpoints.read import Backbone
from mmairl.checkpoints.released import is_hub, is_released
from mmairl.data.preprocess import preprocessing_code, preprocessing_of
from mmairl.errors import UserError
from mmairl.evaluation.identity import weights_identity
from mmairl.evaluation.sets import stated_preprocessing
from mmairl.io import read_text, write_text
from mmairl.report.evaluation_page import Record, records_in
from mmairl.report.page import MARKDOWN, fill
from mmairl.report.table import escaped

# A checkpoint of mmairl stores the settings of its run. Settings with these prefixes describe the data and the recipe.
SHOWN = (
    'train_dataloader.dataset.',
    'model.type',
    'model.target',
    'model.symmetric',
    'model.head.',
    'model.queue.length',
    'total_batch_size',
    'optim_wrapper.optimizer.',
    'train_cfg.max_',
    'default_hooks.momentum.',
    'randomness.seed',
)
SIGNATURE = '\n`{}` is the '  # the start of a card's line about its file of weights


def write_card(backbone: Backbone, weights: str | Path, to: str, license: str = '') -> Path:
    """Write a model card next to a file of weights.

    The card is README.md. If README.md exists and describes another file, the card is FILE.md instead, where FILE is the
    name of the file of weights. An earlier card of the same weights is replaced. Users publish the card, so it contains
    only the last part of each path.

    Args:
        backbone: The converted backbone.
        weights: The path of the file of weights.
        to: The format of the file of weights, such as 'timm'.
        license: Identifier of the license, such as 'apache-2.0'.

    Returns:
        The path of the card.

    Raises:
        UserError: If both README.md and FILE.md exist and are not cards of these weights.
    """
    weights = Path(weights)
    path = _free_path(weights)
    records = _records_of(backbone)
    name = weights.parent.name if to == 'hub' else weights.stem
    text = fill(
        'card.md',
        front=_front_matter(backbone, name, to, license, records),
        escape=lambda value: escaped(str(value), MARKDOWN),
        name=name,
        file=weights.name,
        source=Path(backbone.path).name,
        to=to,
        backbone=backbone,
        network=backbone.network,
        recipe=preprocessing_code(_preprocessing(backbone)),
        parameters=sum(
            value.numel() for key, value in backbone.weights.items() if 'running_' not in key
        ),
        settings=_settings(backbone.settings),
        records=records,
    )
    return write_text(path, text)


def _front_matter(
    backbone: Backbone, name: str, to: str, license: str, records: list[Record]
) -> str:
    """Return the metadata that model hubs read, as YAML."""
    fields: dict[str, Any] = dict(
        library_name='pytorch' if to == 'safetensors' else 'timm',
        pipeline_tag='image-feature-extraction',
    )
    if backbone.settings.get('model.type') == 'Siamese':
        fields['tags'] = ['self-supervised-learning', 'mmairl']
    if license:
        fields['license'] = license
    start = backbone.settings.get('model.backbone.init_cfg.checkpoint', backbone.path)
    if is_hub(start):
        fields['base_model'] = start.partition(':')[2].partition('@')[0]
    results = []
    for record in records:
        metrics = [
            dict(type='accuracy', name=score, value=value) for score, value in record.scores.items()
        ]
        task = dict(type='image-classification', name=record.protocol)
        dataset = dict(type=record.data, name=record.data)
        results.append(dict(task=task, dataset=dataset, metrics=metrics))
    if results:
        fields['model-index'] = [dict(name=name, results=results)]
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)


def _free_path(weights: Path) -> Path:
    signature = SIGNATURE.format(weights.name)
    for path in map(weights.with_name, ('README.md', f'{weights.name}.md')):
        if not path.exists() or signature in read_text(path):
            return path
    raise UserError(
        f'{path}: the file exists and is not the model card of {weights.name}; move this file, or rename the file of the '
        'weights',
        code='card-name-taken',
    )


def _records_of(backbone: Backbone) -> list[Record]:
    """Return the results in the folder of the checkpoint that were measured with exactly these weights."""
    if is_released(backbone.path):
        return []
    own = weights_identity(backbone.weights)
    records = records_in(Path(backbone.path).parent)
    return [record for record in records if (record.identity or {}).get('weights') == own]


def _preprocessing(backbone: Backbone) -> dict[str, Any]:
    """Return how `mmairl.embed` prepares images for the backbone."""
    return preprocessing_of(dict(preprocessing=stated_preprocessing(backbone)))


def _settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the data and the recipe. Paths are cut to their last part."""
    shown = {key: value for key, value in settings.items() if key.startswith(SHOWN)}
    return {
        key: Path(value).name if str(value).startswith('/') else value
        for key, value in shown.items()
    }
