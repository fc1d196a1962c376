"""Released models by name: 'torchvision:NAME', 'timm:NAME' and 'hf-hub:ORG/NAME'.

Weights and settings are downloaded once and cached. Code in the repositories is never downloaded.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch

from mmairl.checkpoints.hub_config import CONFIG, PREPROCESSOR
from mmairl.errors import UserError, explained

HUBS = ('timm:', 'hf-hub:')
WEIGHTS = 'model.safetensors'
UNKNOWN = 'unknown-model', 'no such repository or revision; check the name, or run `hf auth login`'
# Codes and messages by the name of huggingface_hub's exception.
FAULTS = {
    'GatedRepoError': (
        'gated-model',
        'access is restricted; accept the license on its page and run `hf auth login`',
    ),
    'LocalEntryNotFoundError': (
        'offline',
        'not in the cache, and the hub cannot be reached; connect once, or give a file',
    ),
    'EntryNotFoundError': (
        'no-safetensors',
        f'the repository has no {WEIGHTS}; convert its weights, or give another model',
    ),
    'RepositoryNotFoundError': UNKNOWN,
    'RevisionNotFoundError': UNKNOWN,
    'HFValidationError': UNKNOWN,
}


def is_released(name: str | Path) -> bool:
    """Return whether a name is that of a released model, such as 'torchvision:resnet50', rather than a file."""
    return str(name).startswith(('torchvision:', *HUBS))


def is_hub(name: str | Path) -> bool:
    """Return whether a name is that of a model on the Hugging Face hub, which includes timm's."""
    return str(name).startswith(HUBS)


@cache
def released_file(name: str) -> Path:
    """Return the cached file of a released model. The first call downloads it.

    Args:
        name: 'torchvision:NAME' with ImageNet weights, 'timm:NAME' with or without a tag, or 'hf-hub:ORG/NAME[@REVISION]'.

    Raises:
        UserError: 'unknown-model', 'gated-model', 'no-safetensors', 'offline' or 'download-failed'.
    """
    if is_hub(name):
        return _hub_file(hub_repository(name), name)
    return _torchvision_file(name.partition(':')[2])


def hub_repository(name: str) -> str:
    """Return the repository of a model of the hub, as 'ORG/NAME[@REVISION]'."""
    scheme, _, model = name.partition(':')
    return _timm_repository(model) if scheme == 'timm' else model


def _torchvision_file(model: str) -> Path:
    import torchvision

    try:
        url = torchvision.models.get_model_weights(model)['IMAGENET1K_V1'].url
    except (ValueError, KeyError) as error:
        raise UserError(
            f"unknown released model ('torchvision:{model}'); use torchvision:NAME, such as torchvision:resnet50",
            code='unknown-model',
        ) from error
    return download_once(url, Path(url).name, hash_prefix=Path(url).stem.rpartition('-')[2])


def _timm_repository(model: str) -> str:
    """Return the repository of a timm model. Names without a tag get timm's default tag."""
    if '.' in model:
        return f'timm/{model}'
    try:
        from timm.models import get_pretrained_cfg
    except ImportError as error:
        raise UserError(
            f"timm:{model}: a name without a tag requires the package timm; add the tag, such as '{model}.a1_in1k', or "
            'pip install timm',
            code='missing-timm',
        ) from error
    settings = get_pretrained_cfg(model)
    if settings is None or not settings.tag:
        raise UserError(
            f"unknown released model ('timm:{model}'); list the names by timm.list_pretrained()",
            code='unknown-model',
        )
    return f'timm/{model}.{settings.tag}'


def _hub_file(repository: str, name: str) -> Path:
    """Download the weights of a repository and the settings next to them."""
    try:
        from huggingface_hub import errors, hf_hub_download, try_to_load_from_cache
    except ImportError as error:
        raise UserError(
            f'{name}: requires the package huggingface_hub; pip install huggingface_hub',
            code='missing-huggingface-hub',
        ) from error
    repository, _, revision = repository.partition('@')
    where = dict(repo_id=repository, revision=revision or None)
    try:
        # The weights come last, so that cached weights imply that the settings are cached, too, or do not exist.
        for file in (CONFIG, PREPROCESSOR):
            try:
                hf_hub_download(filename=file, **where)
            except errors.EntryNotFoundError as error:
                is_offline = isinstance(error, errors.LocalEntryNotFoundError)
                if is_offline and not try_to_load_from_cache(filename=WEIGHTS, **where):
                    raise
        return Path(hf_hub_download(filename=WEIGHTS, **where))
    except Exception as error:  # a full disk, any error of the HTTP client, ...
        reason = getattr(error, 'strerror', None) or type(error).__name__
        fault = 'download-failed', f'the download failed ({reason}); run it again'
        for kind in reversed(type(error).__mro__):
            fault = FAULTS.get(kind.__name__, fault)
        code, message = fault
        raise UserError(f'{name}: {message}', code=code) from error


def download_once(url: str, name: str, folder: str | Path | None = None, **how: Any) -> Path:
    """Download a URL into torch's cache under this name, unless the file is there."""
    file = Path(folder or Path(torch.hub.get_dir()) / 'checkpoints') / name
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        with explained(
            f'{url} could not be fetched',
            f'put its file at {file}',
            (OSError, RuntimeError),
            code='download-failed',
        ):
            torch.hub.download_url_to_file(url, str(file), **how)
    return file
