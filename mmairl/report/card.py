"""Write model cards for converted weights: Markdown files with metadata that model hubs read."""

from pathlib import Path
from typing import Any

import yaml
from mmengine.config import Config

from mmairl.checkpoints.read import Backbone
from mmairl.checkpoints.released import is_hub, is_released
from mmairl.data.preprocess import preprocessing_code
from mmairl.evaluation.identity import weights_identity
from mmairl.evaluation.sets import prepared_config
from mmairl.io import read_text, write_text
from mmairl.report.evaluation_page import Record, records_in, results, scores_table
from mmairl.report.page import MARKDOWN, fill

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
# Results of trained and of random weights that can be compared share these parts of their identities.
SHARED = 'protocol', 'network', 'input', 'data'
SIGNATURE = '\n`{}` is the '  # the start of a card's line about its file of weights


def write_card(
    backbone: Backbone, weights: str | Path, to: str, license: str = '', cfg: Config | None = None
) -> Path:
    """Write a model card next to a file of weights.

    The card is README.md. If README.md exists and describes another file, the card is FILE.md instead, where FILE is the
    name of the file of weights. An earlier card of the same weights is replaced. Users publish the card, so it contains
    only the last part of each path.

    Args:
        backbone: The converted backbone.
        weights: The path of the file of weights.
        to: The format of the file of weights, such as 'timm'.
        license: Identifier of the license, such as 'apache-2.0'.
        cfg: A config that defines the network, if it is not recognized by its weights.

    Returns:
        The path of the card.
    """
    weights = Path(weights)
    path = weights.with_name('README.md')
    if path.exists() and SIGNATURE.format(weights.name) not in read_text(path):
        path = weights.with_name(f'{weights.name}.md')
    settings = {}
    for key, value in backbone.settings.items():
        if key.startswith(SHOWN):
            settings[key] = Path(value).name if str(value).startswith('/') else value
    parameters = [value for key, value in backbone.weights.items() if 'running_' not in key]
    cfg = cfg or Config(dict(model=dict(backbone=backbone.network)))
    text = fill(
        'card.md',
        front=_front_matter(backbone, to, license),
        escape=lambda value: str(value).translate(MARKDOWN),
        name=weights.parent.name if to == 'hub' else weights.stem,
        file=weights.name,
        source=Path(backbone.path).name,
        to=to,
        backbone=backbone,
        network=cfg.model.backbone,
        recipe=preprocessing_code(prepared_config(cfg, backbone).preprocessing),
        parameters=sum(value.numel() for value in parameters),
        settings=settings,
        scores={data: scores_table(rows) for data, rows in results(_records_of(backbone)).items()},
    )
    return write_text(path, text)


def _front_matter(backbone: Backbone, to: str, license: str) -> str:
    """Return the metadata that model hubs read, as YAML."""
    fields: dict[str, Any] = dict(
        library_name='pytorch' if to == 'safetensors' else 'timm',
        pipeline_tag='image-feature-extraction',
    )
    if license:
        fields['license'] = license
    start = backbone.settings.get('model.backbone.init_cfg.checkpoint', backbone.path)
    if is_hub(start):
        fields['base_model'] = start.partition(':')[2].partition('@')[0]
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)


def _records_of(backbone: Backbone) -> list[Record]:
    """Return the results in the folder of the checkpoint of exactly these weights, and of random weights."""
    if is_released(backbone.path):
        return []
    own = weights_identity(backbone.weights)
    records = records_in(Path(backbone.path).parent)
    measured = {record.key(*SHARED) for record in records if record.weights == own}
    kept = (own, 'random')
    return [
        record for record in records if record.weights in kept and record.key(*SHARED) in measured
    ]
