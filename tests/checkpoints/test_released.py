"""Released models are read by name, and downloaded from a fake hub on this machine."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.error import URLError

import pytest
import timm
import torch
from harness.errors import raises_code
from huggingface_hub import constants
from huggingface_hub.utils import _http
from timm.models import save_for_hf
from torchvision.io import write_png

from mmairl.checkpoints import released
from mmairl.checkpoints.hub_export import write_hub
from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.released import is_released, released_file
from mmairl.errors import UserError
from mmairl.registry import MODELS
from mmairl.study.fairness import given_file
from mmairl.study.study import Row, Source

COMMIT = 'a' * 40


class Hub(BaseHTTPRequestHandler):
    """Serve files of a folder at ORG/NAME/resolve/REVISION/FILE, as the Hugging Face hub does."""

    root: Path
    gated = 'org/gated'
    private = 'org/private'
    # The connection ends after this number of bytes.
    cut_after: int | None = None

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        repository, _, rest = self.path.lstrip('/').partition('/resolve/')
        revision, _, name = rest.partition('/')
        file = self.root / repository / name
        if repository == self.gated:
            return self.fail(401, 'GatedRepo')
        if repository == self.private:
            return self.fail(401, '')
        if not (self.root / repository).is_dir():
            return self.fail(404, 'RepoNotFound')
        if revision not in ('main', COMMIT):
            return self.fail(404, 'RevisionNotFound')
        if not file.is_file():
            return self.fail(404, 'EntryNotFound')
        content = file.read_bytes()
        self.send_response(200)
        self.send_header('ETag', f'"{abs(hash(content)):x}"')
        self.send_header('X-Repo-Commit', COMMIT)
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        if self.command == 'GET':
            self.wfile.write(content[: self.cut_after])

    def fail(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header('X-Error-Code', code)
        self.send_header('X-Repo-Commit', COMMIT)
        self.send_header('Content-Length', '0')
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def connect(monkeypatch, port: int) -> None:
    """Make huggingface_hub connect to this port of this machine, and retry without a delay."""
    endpoint = f'http://127.0.0.1:{port}'
    monkeypatch.setattr(_http, 'time', SimpleNamespace(**{**vars(time), 'sleep': lambda seconds: None}))
    template = endpoint + '/{repo_id}/resolve/{revision}/{filename}'
    monkeypatch.setattr(constants, 'ENDPOINT', endpoint)
    monkeypatch.setattr(constants, 'HUGGINGFACE_CO_URL_TEMPLATE', template)


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[Path]:
    """Return the folder that a fake hub serves to huggingface_hub."""
    Hub.root = tmp_path / 'hub'
    Hub.root.mkdir()
    server = ThreadingHTTPServer(('127.0.0.1', 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    connect(monkeypatch, server.server_port)
    monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path / 'cache'))
    monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', False)
    released_file.cache_clear()
    yield Hub.root
    released_file.cache_clear()
    server.shutdown()


def publish(folder: Path) -> torch.nn.Module:
    network = timm.create_model('vit_tiny_patch16_224', img_size=32, depth=1, num_classes=0)
    save_for_hf(network, folder, safe_serialization=True)
    return network


@pytest.mark.parametrize('name', ['hf-hub:org/vit', f'hf-hub:org/vit@{COMMIT}', 'timm:vit.tag'])
def test_released_model_is_read_by_its_name(name, hub):
    network = publish(hub / ('timm/vit.tag' if name.startswith('timm') else 'org/vit'))
    backbone = read_backbone(name)
    assert backbone.network['arch']['num_heads'] == 3 and backbone.input.origin == 'config.json'
    assert torch.equal(backbone.weights['cls_token'], network.cls_token)
    assert backbone.record['file'] == name


def test_released_model_is_evaluated_in_one_line(hub, tmp_path, run_tool):
    publish(hub / 'org/vit')
    counts = ['evaluation.train.count=32', 'evaluation.test.count=16', 'evaluation.batch_size=16']
    config = 'mmairl::demo/mocov2plus_shapes.py'
    words = ['knn', config, 'hf-hub:org/vit', '--k', 3, '--workers', 0, '--no-cache', '--out', tmp_path / 'knn.json']
    run_tool('tools/evaluate.py', *words, '--cfg-options', *counts)
    assert json.loads((tmp_path / 'knn.json').read_text())['scores']


@pytest.mark.parametrize(
    'tool, words, output',
    [
        ('convert', ['NAME', 'out/a.pth'], 'a.pth'),
        ('analyze', ['norms', 'NAME', 'a.pth', '--out', 'out'], 'norms.csv'),
        ('normrescale', ['a.pth', 'out/a.pth', '--anchor', 'NAME'], 'a.pth'),
        ('report', ['map', 'NAME', '--images', 'images', '--size', '32', '--out', 'out/map.html'], 'map.html'),
    ],
)
def test_command_reads_a_released_model(tool, words, output, hub, tmp_path, run_tool, monkeypatch):
    network = MODELS.build(dict(type='ResNet', depth=18, base_channels=16, stem_channels=16))
    torch.save(dict(state_dict={f'backbone.{key}': x for key, x in network.state_dict().items()}), tmp_path / 'a.pth')
    write_hub(read_backbone(tmp_path / 'a.pth'), hub / 'org/resnet')
    (tmp_path / 'images').mkdir()
    for number in range(4):
        write_png(torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8), str(tmp_path / f'images/{number}.png'))
    monkeypatch.chdir(tmp_path)
    run_tool(f'tools/{tool}.py', *('hf-hub:org/resnet' if word == 'NAME' else word for word in words))
    assert (tmp_path / 'out' / output).is_file()


def test_torchvision_without_network_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
    monkeypatch.setattr(released, 'urlopen', Mock(side_effect=URLError('no network')))
    released_file.cache_clear()
    with raises_code('download-failed', match='no network'):
        read_backbone('torchvision:resnet18')
    assert not list(tmp_path.rglob('*.pth*'))


def test_interrupted_download_leaves_no_part(hub, tmp_path):
    (hub / 'org/file').mkdir(parents=True)
    (hub / 'org/file/a.pth').write_bytes(bytes(2**20))
    Hub.cut_after = 2**19
    url = f'{constants.ENDPOINT}/org/file/resolve/main/a.pth'
    with raises_code('download-failed', match=f'after {2**19} of {2**20} bytes'):
        released.download_once(url, 'a.pth', tmp_path / 'files')
    assert not list((tmp_path / 'files').iterdir())
    Hub.cut_after = None
    with raises_code('download-failed', match='SHA-256 does not start with 0000'):
        released.download_once(url, 'a.pth', tmp_path / 'files', hash_prefix='0000')
    assert released.download_once(url, 'a.pth', tmp_path / 'files').stat().st_size == 2**20


def test_released_model_can_be_a_row_of_a_study(hub):
    publish(hub / 'org/vit')
    path = given_file(Row('vit', '', source=Source(files={0: 'hf-hub:org/vit'})), 0)
    assert read_backbone(path).network == read_backbone('hf-hub:org/vit').network


def test_default_tag_comes_from_timm(monkeypatch):
    assert released.hub_repository('timm:resnet18') == f'timm/resnet18.{timm.get_pretrained_cfg("resnet18").tag}'
    assert released.hub_repository('timm:resnet18.tag') == 'timm/resnet18.tag'


def test_second_reading_needs_no_hub(hub, monkeypatch):
    publish(hub / 'org/vit')
    first = released_file('hf-hub:org/vit')
    released_file.cache_clear()
    connect(monkeypatch, 9)
    assert released_file('hf-hub:org/vit') == first and first.with_name('config.json').is_file()


FAULTS = {
    'hf-hub:org/none': 'unknown-model',
    'hf-hub:not a name': 'unknown-model',
    'hf-hub:org/vit@none': 'unknown-model',
    'hf-hub:org/gated': 'gated-model',
    'hf-hub:org/private': 'gated-model',
    'hf-hub:org/pickle': 'no-safetensors',
    'timm:no_such_network': 'unknown-model',
    'torchvision:no_such_network': 'unknown-model',
}


@pytest.mark.parametrize('name', FAULTS)
def test_model_that_cannot_be_fetched_is_an_error(name, hub):
    publish(hub / 'org/vit')
    (hub / 'org/pickle').mkdir()
    torch.save({}, hub / 'org/pickle/pytorch_model.bin')
    assert is_released(name)
    with raises_code(FAULTS[name]):
        read_backbone(name)


def test_model_without_a_hub_is_an_error(hub, monkeypatch):
    connect(monkeypatch, 9)
    with raises_code('offline'):
        read_backbone('hf-hub:org/vit')


def test_full_disk_is_an_error_without_a_partial_file(hub, monkeypatch):
    publish(hub / 'org/vit')

    def write(*_: object, **__: object) -> None:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr('huggingface_hub.file_download.http_get', write)
    with raises_code('download-failed', match='No space left on device.*free some disk space'):
        read_backbone('hf-hub:org/vit')
    monkeypatch.undo()
    assert not list(hub.parent.glob('cache/**/*.safetensors'))


def test_interrupted_settings_are_not_skipped(hub, monkeypatch):
    """If config.json were skipped, ResNets with anti-aliasing would be read as plain ResNets."""
    publish(hub / 'org/vit')
    real = Hub.do_GET

    def fail_for_settings(self: Hub) -> None:
        if self.path.endswith('config.json'):
            self.connection.close()
        else:
            real(self)

    monkeypatch.setattr(Hub, 'do_GET', fail_for_settings)
    with pytest.raises(UserError) as caught:
        read_backbone('hf-hub:org/vit')
    assert caught.value.code in ('offline', 'download-failed')
