"""Shards on a web server on the loopback: replaced shards, failing servers, and errors without URLs' secrets."""

import hashlib
import re
import socket
import ssl
import threading
import traceback
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from data.archives import archive, png
from harness.errors import raises_code
from torch.utils.data import DataLoader

from mmairl.data.shards import far
from mmairl.data.shards.dataset import Shards

pytest.importorskip('aiohttp', reason='fsspec reads web servers by aiohttp (pip install aiohttp)')
pytestmark = pytest.mark.usefixtures('own_cache', 'clock')
NO_ETAG = dict(etag='')
NO_VALIDATOR = dict(etag='', modified=False)


def shard(brightness: int, images: int = 4) -> bytes:
    """Return an archive of gray images. Its length does not depend on the brightness."""
    members = {}
    for at in range(images):
        members[f'{at}.png'] = png(np.full((8, 8, 3), brightness, np.uint8))
        members[f'{at}.cls'] = b'%d' % (at % 2)
    return archive(members)


class Site:
    """A web server with one archive, whose validators and faults a test chooses."""

    def __init__(self) -> None:
        self.content, self.time = shard(200), 1.6e9
        self.etag, self.modified, self.evaluates_conditions = '"{}"', True, True
        self.closes_connections = False
        self.answers: list[object] = []  # the next answers of the archive: a status, 'drop' or 'cut'
        self.headers: list[dict[str, str]] = []  # of the requests for the archive
        self.serve(('127.0.0.1', 0), type('Handler', (Answers,), dict(site=self)))
        self.url = f'http://127.0.0.1:{self.server.server_port}'

    def serve(self, address: tuple[str, int], handler: type) -> None:
        self.server = ThreadingHTTPServer(address, handler)
        threading.Thread(target=self.server.serve_forever, args=[0.01], daemon=True).start()

    def set(self, **settings: object) -> None:
        for name, value in settings.items():
            setattr(self, name, value)

    def replace(self, content: bytes) -> None:
        self.content, self.time = content, self.time + 60

    def validators(self) -> dict[str, str]:
        digest = hashlib.sha256(self.content).hexdigest()[:8]
        held = {'ETag': self.etag.format(digest), 'Last-Modified': formatdate(self.time, usegmt=True)}
        return {name: value for name, value in held.items() if value and (name == 'ETag' or self.modified)}


class Answers(BaseHTTPRequestHandler):
    site: Site
    protocol_version = 'HTTP/1.1'

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, headers: dict[str, str], body: bytes, cut: int | None = None) -> None:
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
        if self.path.startswith('/nowhere/'):
            self.answer(302, {'Location': 'http://[verysecret/a.tar'}, b'')
            return
        if self.path.startswith('/redirect/'):
            self.answer(302, {'Location': f'{site.url}/signed.tar?X-Amz-Signature=verysecret'}, b'')
            return
        site.headers.append(dict(self.headers))
        fault = site.answers.pop(0) if site.answers else None
        if isinstance(fault, int):
            self.answer(fault, {}, b'see https://denied.example/?Signature=verysecret&Expired=1')
        elif fault == 'drop':
            self.close_connection = True
        else:
            self.send_archive(cut=10 if fault == 'cut' else None)

    def send_archive(self, cut: int | None) -> None:
        site, validators = self.site, self.site.validators()
        if site.evaluates_conditions:
            wanted = self.headers.get('If-Match'), self.headers.get('If-Unmodified-Since')
            current = validators.get('ETag'), validators.get('Last-Modified')
            if any(value and value != now for value, now in zip(wanted, current)):
                self.answer(412, {}, b'')
                return
        if 'Range' not in self.headers:
            self.answer(200, validators, site.content, cut)
            return
        first, last = map(int, re.fullmatch(r'bytes=(\d+)-(\d+)', self.headers['Range']).groups())
        total = len(site.content)
        if first >= total:
            self.answer(416, {'Content-Range': f'bytes */{total}'}, b'')
            return
        part = site.content[first : last + 1]
        headers = {'Content-Range': f'bytes {first}-{first + len(part) - 1}/{total}', **validators}
        self.answer(206, headers, part, cut)


@pytest.fixture
def site():
    made = Site()
    yield made
    made.server.shutdown()
    made.server.server_close()


def brightness(data: Shards) -> list[int]:
    return [int(data.raw(index)[0, 0, 0]) for index in range(len(data))]


def test_web_server_is_read_also_in_workers(site):
    data = Shards(f'{site.url}/a.tar')
    assert brightness(data) == [200] * 4 and data.labels.tolist() == [0, 1, 0, 1]
    (batch,) = DataLoader(data, batch_size=4, num_workers=1)
    assert batch['inputs'][0].unique().tolist() == [200]


SERVERS = {
    'etag': {},
    'weak etag': dict(etag='W/"{}"'),
    'weak etag alone': dict(etag='W/"{}"', modified=False),
    'no etag': NO_ETAG,
    'no conditions': dict(evaluates_conditions=False),
    'weak etag, no conditions': dict(etag='W/"{}"', evaluates_conditions=False),
    'no etag, no conditions': dict(etag='', evaluates_conditions=False),
    'constant etag': dict(etag='"x"'),
}


@pytest.mark.parametrize('content', [shard(90), shard(90, 20), shard(90)[:2048]], ids=['same', 'longer', 'shorter'])
@pytest.mark.parametrize('folder', ['', '/redirect'])
@pytest.mark.parametrize('server', SERVERS)
def test_replaced_shard_ends_the_run_at_the_next_read(server, folder, content, site):
    site.set(**SERVERS[server])
    data = Shards(f'{site.url}{folder}/a.tar')
    assert int(data.raw(0)[0, 0, 0]) == 200
    site.replace(content)
    for index in (3, 0):
        with raises_code('shard-changed') as raised:
            data.raw(index)
        assert 'verysecret' not in str(raised.value)
    if len(content) != len(shard(200)):
        return
    assert brightness(Shards(f'{site.url}{folder}/a.tar')) == [90] * 4


def test_shard_replaced_while_it_is_copied_is_an_error(site, monkeypatch, tmp_path):
    monkeypatch.setattr(far, 'BLOCK', 1024)
    url = f'{site.url}/a.tar'
    stamp = far.stamp_of(url)
    read = far.requested

    def replaced_midway(system, path, *place):
        if place[1:2] == (2048,):
            site.replace(shard(90))
        return read(system, path, *place)

    monkeypatch.setattr(far, 'requested', replaced_midway)
    (tmp_path / 'copy').touch()
    with raises_code('shard-changed'):
        far.copy(url, stamp, tmp_path / 'copy')


def test_conditions_are_sent_that_the_validators_allow(site):
    for settings, sent, unsent in [
        ({}, 'If-Match', 'If-Unmodified-Since'),
        (dict(etag='W/"{}"'), 'If-Unmodified-Since', 'If-Match'),
        (NO_ETAG, 'If-Unmodified-Since', 'If-Match'),
    ]:
        site.set(**settings)
        Shards(f'{site.url}/a.tar').raw(1)
        assert sent in site.headers[-1] and unsent not in site.headers[-1]


def test_server_without_validators_needs_a_cache(site, tmp_path):
    site.set(**NO_VALIDATOR)
    with raises_code('far-unversioned'):
        Shards(f'{site.url}/a.tar')
    assert brightness(Shards(f'{site.url}/a.tar', cache=tmp_path / 'node')) == [200] * 4


@pytest.mark.parametrize('fault', ['drop', 'cut', 500, 503, 429])
@pytest.mark.parametrize('folder', ['', '/redirect'])
def test_temporary_http_fault_is_retried(fault, folder, site, clock):
    site.answers = [fault] * 6  # aiohttp itself tries again after a drop
    data = Shards(f'{site.url}{folder}/a.tar')
    site.answers = [fault] * 6
    assert int(data.raw(1)[0, 0, 0]) == 200
    assert [pause for pause in clock.slept if pause > 0.1], 'pauses grow'
    site.answers = [fault] * 1000
    began = clock.now
    with raises_code('no-answer', str(fault) if isinstance(fault, int) else None) as raised:
        data.raw(1)
    assert 60 < clock.now - began <= far.PATIENCE
    assert 'verysecret' not in str(raised.value)


@pytest.mark.parametrize(
    ('status', 'code'),
    [(404, 'far-missing'), (403, 'far-denied'), (401, 'far-denied'), (400, 'far-refused')],
)
def test_refusal_is_explained_at_once(status, code, site, clock):
    data = Shards(f'{site.url}/redirect/a.tar')
    site.answers = [status] * 1000
    with raises_code(code) as raised:
        data.raw(1)
    assert 'verysecret' not in str(raised.value)
    assert not clock.slept


def test_server_that_is_away_is_retried_at_any_time(site, clock, monkeypatch):
    site.set(closes_connections=True)
    data = Shards(f'{site.url}/a.tar')
    data.raw(0)
    site.server.shutdown()
    site.server.server_close()
    for read in (lambda: data.raw(1), lambda: Shards(f'{site.url}/a.tar')):
        began = clock.now
        with raises_code('no-answer'):
            read()
        assert clock.now - began > 60
    monkeypatch.setattr(
        clock, 'sleep', lambda _: site.serve(site.server.server_address, site.server.RequestHandlerClass)
    )
    assert int(data.raw(1)[0, 0, 0]) == 200


@pytest.mark.parametrize('url', ['http:///a.tar', 'http://[::1/a.tar', 'http://host:99999/a.tar'])
def test_invalid_url_is_an_error(url):
    with raises_code('bad-url'):
        Shards(url)


def test_redirect_to_an_invalid_url_does_not_show_it(site):
    with raises_code('bad-url') as raised:
        Shards(f'{site.url}/nowhere/a.tar')
    assert 'verysecret' not in ''.join(traceback.format_exception(raised.value))


def test_dns_failure_is_retried(clock):
    with raises_code('no-answer'):
        Shards('http://expired-credentials.invalid/a.tar')
    assert clock.now > 60


def test_tls_failure_is_retried(site, clock):
    with raises_code('no-answer'):
        Shards(f'{site.url.replace("http", "https")}/a.tar')  # the server does not know TLS
    assert clock.now > 60


@pytest.mark.parametrize('error', [
    ssl.SSLCertVerificationError('certificate has expired'),
    socket.gaierror(-2, 'credential: Name or service not known'),
    ConnectionResetError('denied'),
])  # fmt: skip
def test_connection_errors_are_no_refusals(error):
    """Also where a package wraps them into a FileNotFoundError, as fsspec does."""
    with pytest.raises(OSError), far.explained_refusals('s3://bucket/a.tar'):
        raise error
    with pytest.raises(OSError), far.explained_refusals('s3://bucket/a.tar'):
        try:
            raise error
        except Exception as cause:
            raise FileNotFoundError('bucket/a.tar') from cause


def test_missing_file_of_a_package_without_statuses():
    with raises_code('far-missing'), far.explained_refusals('memory://a.tar'):
        raise FileNotFoundError('/a.tar')


def test_other_storages_are_checked_after_a_read(own_cache):
    """Storages other than S3 and web servers."""
    import fsspec

    class Dated(type(fsspec.filesystem('memory'))):
        protocol = 'dated'

        @classmethod
        def _strip_protocol(cls, path):
            return super()._strip_protocol(path.replace('dated://', 'memory://'))

        def info(self, path, **how):
            held = super().info(path, **how)
            return held | dict(mtime=str(held.get('created')))

    fsspec.register_implementation('dated', Dated, clobber=True)
    files = fsspec.filesystem('memory')
    files.pipe('/a.tar', shard(200))
    data = Shards('dated://a.tar')
    assert int(data.raw(0)[0, 0, 0]) == 200
    files.pipe('/a.tar', shard(90))
    with raises_code('shard-changed'):
        data.raw(1)
