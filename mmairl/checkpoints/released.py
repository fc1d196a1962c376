"""Download released models by name: 'torchvision:NAME', 'timm:NAME' and 'hf-hub:ORG/NAME'.

Weights and settings are downloaded once and cached. Code in the repositories is never downloaded.
"""

import hashlib
from functools import cache
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

import torch
from rich.console import Console
from rich.progress import wrap_file

from mmairl.checkpoints.hub_config import CONFIG, PREPROCESSOR
from mmairl.errors import UserError, explained
from mmairl.io import FULL, replacing

HUBS = ('timm:', 'hf-hub:')
WEIGHTS = 'model.safetensors'
# The number of bytes that are read from a server at a time.
BLOCK = 2**17
UNKNOWN = 'unknown-model', 'no such repository or revision; check the name, or run `hf auth login`'
# Maps the name of an exception of huggingface_hub to mmairl's error code and message.
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
    """Return True for the name of a released model, such as 'torchvision:resnet50', and False for the path of a file."""
    return str(name).startswith(('torchvision:', *HUBS))


def is_hub(name: str | Path) -> bool:
    """Return whether this is the name of a model on the Hugging Face hub, such as 'timm:NAME' or 'hf-hub:ORG/NAME'."""
    return str(name).startswith(HUBS)


@cache
def released_file(name: str) -> Path:
    """Return the cached file of a released model. The first call downloads it.

    Args:
        name: 'torchvision:NAME' with ImageNet weights, 'timm:NAME' with or without a tag, or 'hf-hub:ORG/NAME[@REVISION]'.

    Raises:
        UserError: 'unknown-model', 'gated-model', 'no-safetensors', 'offline' or 'download-failed'. If a package is missing,
            'missing-timm' or 'missing-huggingface-hub'.
    """
    if is_hub(name):
        return _hub_file(hub_repository(name), name)
    return _torchvision_file(name.partition(':')[2])


def hub_repository(name: str) -> str:
    """Return the repository of a model on the Hugging Face hub, as 'ORG/NAME[@REVISION]'."""
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
    """Download the weights of a repository and its settings files, and return the path of the weights."""
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
        # The weights are downloaded last. If the cache contains them, it also contains all existing settings files.
        for file in (CONFIG, PREPROCESSOR):
            try:
                hf_hub_download(filename=file, **where)
            except errors.EntryNotFoundError as error:
                is_offline = isinstance(error, errors.LocalEntryNotFoundError)
                if is_offline and not try_to_load_from_cache(filename=WEIGHTS, **where):
                    raise
        return Path(hf_hub_download(filename=WEIGHTS, **where))
    # A download can raise many exceptions, such as those of the HTTP client or of a full disk.
    except Exception as error:
        status = getattr(getattr(error, 'response', None), 'status_code', None)
        reason = getattr(error, 'strerror', None) or type(error).__name__
        if status is not None:
            reason = f'HTTP status {status}'
        free = 'free some disk space and ' if getattr(error, 'errno', None) in FULL else ''
        fault = 'download-failed', f'the download failed ({reason}); {free}try again'
        # The hub answers with these codes if a repository is private or a token is not valid.
        if status in (401, 403):
            fault = FAULTS['GatedRepoError']
        for kind in reversed(type(error).__mro__):
            fault = FAULTS.get(kind.__name__, fault)
        code, message = fault
        raise UserError(f'{name}: {message}', code=code) from error


def download_once(
    url: str,
    name: str,
    folder: str | Path | None = None,
    hash_prefix: str = '',
    progress: bool = True,
) -> Path:
    """Download a URL to the file `name`, unless this file exists. Return its path. Default folder: torch's cache."""
    file = Path(folder or Path(torch.hub.get_dir()) / 'checkpoints') / name
    if not file.is_file():
        with explained(
            f'{url} could not be downloaded',
            f'try again, or download the file in another way and save it as {file}',
            (OSError, RuntimeError, HTTPException),
            code='download-failed',
        ):
            _download(url, file, hash_prefix, progress)
    return file


def _download(url: str, file: Path, hash_prefix: str, progress: bool) -> None:
    """Download a file, and keep it only if it is complete.

    `torch.hub.download_url_to_file` is not used because it keeps an incomplete file if the connection ends early and no hash
    is given.
    """
    # Some servers reject the user agent of urllib.
    request = Request(url, headers={'User-Agent': 'mmairl'})
    console = Console(stderr=True)
    digest = hashlib.sha256()
    with replacing(file) as partial, urlopen(request) as response:
        length = int(response.headers.get('Content-Length', 0))
        bar = wrap_file(
            response, length, description=file.name, disable=not progress, console=console
        )
        with partial.open('wb') as out, bar as source:
            while block := source.read(BLOCK):
                out.write(block)
                digest.update(block)
            received = out.tell()
        if length and received != length:
            raise OSError(f'the connection ended after {received} of {length} bytes')
        if not digest.hexdigest().startswith(hash_prefix):
            raise OSError(f'its SHA-256 does not start with {hash_prefix}')
