"""Shards on a local web server: shards that are replaced, servers that fail, and error messages, which contain no secret."""

import hashlib
import re
import threading
import traceback
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from data.archives import Dated, archive, png
from harness.errors import raises_code
from torch.utils.data import DataLoader

from mmairl.data.shards import remote
from mmairl.data.shards.dataset import Shards
from mmairl.errors import UserError

pytest.importorskip(
    'aiohttp', reason='aiohttp, with which fsspec reads web servers, is not installed (pip install aiohttp)'
)
pytestmark = pytest.mark.usefixtures('own_cache', 'clock')


def shard(brightness: int, images: int = 4) -> bytes:
    """Return an archive of gray images. The length of the archive does not depend on their brightness."""
    members = {}
    for at in range(images):
        members[f'{at}.png'] = png(np.full((8, 8, 3), brightness, np.uint8))
        members[f'{at}.cls'] = b'%d' % (at % 2)
    return archive(members)


class Answers(BaseHTTPRequestHandler):
    """Serve one archive with the ETags, dates and faults that a test sets in `site`."""

    site: 'Site'
    protocol_version = 'HTTP/1.1'

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, headers: dict, body: bytes, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {'Content-Length': str(len(body)), **headers}.items():
            self.send_header(name, value)
        if self.site.closes_connections:
            self.send_header('Connection', 'close')
        self.end_headers()
        if self.command == 'GET':
            self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        site = self.site
        signed = f'{site.url}/signed.tar?X-Amz-Signature=verysecret'
        redirects = {'/nowhere/a.tar': 'http://[verysecret/a.tar', '/redirect/a.tar': signed}
        if self.path in redirects:
            self.answer(302, {'Location': redirects[self.path]}, b'')
            return
        fault = site.answers.pop(0) if site.answers else None
        if isinstance(fault, int):
            self.answer(fault, {}, b'see https://denied.example/?Signature=verysecret&Expired=1')
        elif fault == 'drop':
            self.close_connection = True
        else:
            self.send_archive(cut=10 if fault == 'cut' else None)

    def send_archive(self, cut: int | None) -> None:
        content = self.site.content
        headers = self.site.validators()
        if 'Range' not in self.headers or not self.site.has_ranges:
            self.answer(200, headers, content, cut)
            return
        first, last = map(int, re.fullmatch(r'bytes=(\d+)-(\d+)', self.headers['Range']).groups())
        if first >= len(content):
            self.answer(416, {'Content-Range': f'bytes */{len(content)}'}, b'')
            return
        part = content[first : last + 1]
        place = f'bytes {first}-{first + len(part) - 1}/{len(content)}'
        self.answer(206, {'Content-Range': place, **headers}, part, cut)


class Site:
    def __init__(self) -> None:
        self.content = shard(200)
        self.time = 1.6e9
        self.etag = '"{}"'
        self.modified = True
        self.closes_connections = False
        self.has_ranges = True
        # Each entry replaces one of the next answers: an HTTP status to send, 'drop' to close the connection without an
        # answer, or 'cut' to send only 10 bytes.
        self.answers: list[object] = []
        self.serve(('127.0.0.1', 0))
        self.url = f'http://127.0.0.1:{self.server.server_port}'

    def serve(self, address: tuple[str, int]) -> None:
        self.server = ThreadingHTTPServer(address, type('Handler', (Answers,), dict(site=self)))
        threading.Thread(target=self.server.serve_forever, args=[0.01], daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def replace(self, content: bytes) -> None:
        self.content = content
        self.time += 60

    def validators(self) -> dict[str, str]:
        headers = {}
        if self.etag:
            digest = hashlib.sha256(self.content).hexdigest()[:8]
            headers['ETag'] = self.etag.format(digest)
        if self.modified:
            headers['Last-Modified'] = formatdate(self.time, usegmt=True)
        return headers


@pytest.fixture
def site():
    started = Site()
    yield started
    started.stop()


def brightness(data: Shards) -> list[int]:
    return [int(data.raw(index)[0, 0, 0]) for index in range(len(data))]


def test_web_server_is_read_also_in_workers(site):
    data = Shards(f'{site.url}/a.tar')
    assert brightness(data) == [200] * 4
    assert data.labels.tolist() == [0, 1, 0, 1]
    (batch,) = DataLoader(data, batch_size=4, num_workers=1)
    assert batch['inputs'][0].unique().tolist() == [200]


CONTENTS = dict(same=shard(90), longer=shard(90, 20), shorter=shard(90)[:2048])


@pytest.mark.parametrize('content', CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize(
    ('folder', 'etag', 'modified'),
    [
        ('', '"{}"', True),
        ('', 'W/"{}"', False),
        ('', '', True),
        ('', '"x"', True),
        ('/redirect', '"{}"', True),
    ],
)
def test_replaced_shard_ends_the_run_at_the_next_read(folder, etag, modified, content, site):
    site.etag = etag
    site.modified = modified
    data = Shards(f'{site.url}{folder}/a.tar')
    assert int(data.raw(0)[0, 0, 0]) == 200
    site.replace(content)
    for index in (3, 0):
        with raises_code('shard-changed') as raised:
            data.raw(index)
        assert 'verysecret' not in str(raised.value)
    if content == CONTENTS['same']:
        assert brightness(Shards(f'{site.url}{folder}/a.tar')) == [90] * 4


def test_shard_replaced_while_it_is_copied_is_an_error(site, monkeypatch, tmp_path):
    monkeypatch.setattr(remote, 'BLOCK', 1024)
    url = f'{site.url}/a.tar'
    stamp = remote.stamp_of(url)
    read_part = remote.part

    def replaced_midway(url: str, stamp: remote.Stamp, start: int, size: int) -> bytes:
        if start == 2048:
            site.replace(shard(90))
        return read_part(url, stamp, start, size)

    monkeypatch.setattr(remote, 'part', replaced_midway)
    (tmp_path / 'copy').touch()
    with raises_code('shard-changed'):
        remote.copy(url, stamp, tmp_path / 'copy')


def test_server_without_validators_needs_a_cache(site, tmp_path):
    site.etag = ''
    site.modified = False
    with raises_code('remote-unversioned'):
        Shards(f'{site.url}/a.tar')
    assert brightness(Shards(f'{site.url}/a.tar', cache=tmp_path / 'node')) == [200] * 4


@pytest.mark.parametrize(
    ('fault', 'folder'),
    [('drop', ''), ('cut', ''), (500, '/redirect'), (503, ''), (429, '/redirect')],
)
def test_temporary_http_fault_is_retried(fault, folder, site, clock):
    # A try consists of several requests, and aiohttp repeats each request after a drop. Only many
    # faults make a whole try fail.
    site.answers = [fault] * 12
    data = Shards(f'{site.url}{folder}/a.tar')
    site.answers = [fault] * 12
    assert int(data.raw(1)[0, 0, 0]) == 200
    assert [pause for pause in clock.slept if pause > 0.1], 'the retries do not pause'
    site.answers = [fault] * 1000
    began = clock.now
    with raises_code('no-answer', str(fault) if isinstance(fault, int) else None) as raised:
        data.raw(1)
    assert 60 < clock.now - began <= remote.PATIENCE
    assert 'verysecret' not in str(raised.value)


@pytest.mark.parametrize(
    ('status', 'code'),
    [(404, 'remote-missing'), (403, 'remote-refused'), (400, 'remote-refused')],
)
def test_refusal_is_explained_at_once(status, code, site, clock):
    data = Shards(f'{site.url}/redirect/a.tar')
    site.answers = [status] * 1000
    with raises_code(code) as raised:
        data.raw(1)
    assert 'verysecret' not in str(raised.value)
    assert not clock.slept


def test_unreachable_server_is_retried_at_any_time(site, clock, monkeypatch):
    site.closes_connections = True
    data = Shards(f'{site.url}/a.tar')
    data.raw(0)
    site.stop()
    for attempt in (lambda: data.raw(1), lambda: Shards(f'{site.url}/a.tar')):
        began = clock.now
        with raises_code('no-answer'):
            attempt()
        assert clock.now - began > 60
    monkeypatch.setattr(clock, 'sleep', lambda _: site.serve(site.server.server_address))
    assert int(data.raw(1)[0, 0, 0]) == 200


@pytest.mark.parametrize('url', ['http:///a.tar', 'http://[::1/a.tar', 'http://host:99999/a.tar'])
def test_invalid_url_is_an_error(url):
    with raises_code('bad-url'):
        Shards(url)


def test_redirect_to_an_invalid_url_does_not_show_it(site):
    with raises_code('bad-url') as raised:
        Shards(f'{site.url}/nowhere/a.tar')
    assert 'verysecret' not in ''.join(traceback.format_exception(raised.value))


def test_dns_and_tls_failures_are_retried(site, clock):
    without_tls = site.url.replace('http', 'https')
    for url in ('http://expired-credentials.invalid', without_tls):
        began = clock.now
        with raises_code('no-answer'):
            Shards(f'{url}/a.tar')
        assert clock.now - began > 60


def test_missing_file_of_a_package_without_statuses():
    with raises_code('remote-missing'), remote.explained_refusals('memory://a.tar'):
        raise FileNotFoundError('/a.tar')


def test_storages_without_etags_are_compared_by_time():
    files = Dated()
    files.pipe('/a.tar', shard(200))
    data = Shards('dated://a.tar')
    assert int(data.raw(0)[0, 0, 0]) == 200
    files.pipe('/a.tar', shard(90))
    with raises_code('shard-changed'):
        data.raw(1)


def test_server_without_ranges_is_an_error(site):
    data = Shards(f'{site.url}/a.tar')
    site.has_ranges = False
    with raises_code('no-http-ranges', f'{site.url}/a.tar'):
        data.raw(2)


def test_programming_error_passes_without_retries(clock):
    with pytest.raises(AttributeError, match='no attribute') as raised:
        remote.call_remote('memory://a', 'nonsense')
    assert not isinstance(raised.value, UserError)
    assert clock.slept == []


def test_url_with_a_password_is_an_error():
    with raises_code('secret-in-url') as raised:
        Shards('https://me:verysecret@host/train.tar')
    assert 'verysecret' not in str(raised.value)
