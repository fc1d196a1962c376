"""Shards on a local S3 server: they are read without local copies, and faults of the server are handled."""

import pickle
import time
import traceback
from functools import partial

import numpy as np
import pytest
from data.archives import PIXELS, all_pixels, archive, numbered_shard, png
from harness.errors import raises_code

from mmairl.data.decode import UnreadableImage
from mmairl.data.shards import remote
from mmairl.data.shards.dataset import Shards

moto = pytest.importorskip('moto.server', reason='moto is not installed (pip install "moto[server]" s3fs)')
s3fs = pytest.importorskip('s3fs', reason='s3fs is not installed (pip install s3fs)')
import boto3  # noqa: E402

# A late answer of the server comes after this number of seconds.
PAUSE = 3
SECRETS = 'verysecret', 'AKIAPUBLIC'


class Faults:
    """An application that delays the next `left` answers of the server, or replaces them with errors.

    Errors of the kind 'silent' have no body, like S3's answers to HEAD.
    """

    def __init__(self, application) -> None:
        self.application = application
        self.kind = ''
        self.left = 0
        self.requests = []

    def __call__(self, environ, start_response):
        method = environ['REQUEST_METHOD']
        self.requests.append(method)
        if not self.left or method != ('HEAD' if self.kind == 'silent' else 'GET'):
            return self.application(environ, start_response)
        self.left -= 1
        if self.kind == 'late':
            time.sleep(PAUSE)
            return self.application(environ, start_response)
        start_response('400 Bad Request', [('Content-Type', 'application/xml')])
        if self.kind == 'silent':
            return []
        return [b'<Error><Code>ExpiredToken</Code><Message>m</Message></Error>']


@pytest.fixture(scope='module')
def server():
    served = moto.ThreadedMotoServer(port=0, verbose=False)
    served.start()
    _, port = served.get_host_and_port()
    yield served, f'http://127.0.0.1:{port}'
    served.stop()


SHARDS = {f'train-{at // 4}.tar': numbered_shard(PIXELS[at : at + 4], at) for at in (0, 4, 8)}
URL = 's3://images/train-{0..2}.tar'


@pytest.fixture
def storage(server, own_cache, clock, monkeypatch):
    """Create a bucket with three shards. Yield an S3 client and the faults of the server."""
    served, url = server
    monkeypatch.setenv('AWS_ENDPOINT_URL', url)
    monkeypatch.setenv('AWS_ACCESS_KEY_ID', 'AKIAPUBLIC')
    monkeypatch.setenv('AWS_SECRET_ACCESS_KEY', 'verysecret')
    monkeypatch.setenv('AWS_DEFAULT_REGION', 'us-east-1')
    monkeypatch.setenv('AWS_MAX_ATTEMPTS', '1')
    monkeypatch.setattr(remote, 'PATIENCE', 1)
    monkeypatch.setattr(s3fs.S3FileSystem, 'retries', 1)
    s3fs.S3FileSystem.clear_instance_cache()
    client = boto3.client('s3')
    client.create_bucket(Bucket='images')
    for name, content in SHARDS.items():
        client.put_object(Bucket='images', Key=name, Body=content)
    application = served._server.app
    faults = Faults(getattr(application, 'application', application))
    served._server.app = faults
    yield client, faults
    faults.left = 0


def test_empty_remote_image_is_unreadable(storage):
    client, _ = storage
    client.put_object(
        Bucket='images', Key='empty/a.tar', Body=archive({'a.png': b'', 'b.png': png(np.zeros((8, 8, 3), np.uint8))})
    )
    data = Shards('s3://images/empty/a.tar')
    with pytest.raises(UnreadableImage, match='is empty'):
        data.raw(0)
    assert len(data.raw(1)) == 3


def test_remote_images_are_read_also_in_workers(storage):
    data = Shards(URL)
    assert data.labels.tolist() == [0, 1, 2] * 4
    for workers in (0, 1):
        assert np.array_equal(all_pixels(data, workers), PIXELS)


def test_remote_folder_pattern_or_list_is_read(storage, tmp_path):
    client, _ = storage
    client.put_object(Bucket='images', Key='few/x-0-of-2.tar', Body=SHARDS['train-0.tar'])
    (tmp_path / 'list.txt').write_text(f'# of the bucket\n{URL}\n')
    expected = [f's3://images/{name}' for name in SHARDS]
    for place in ('s3://images/', 's3://images/train-*.tar', tmp_path / 'list.txt'):
        assert Shards(place).contents.shards == expected
    with raises_code('no-shards'):
        Shards('s3://images/none-*.tar')
    with raises_code('missing-shards'):
        Shards('s3://images/few')


@pytest.mark.slow
def test_late_answer_is_requested_again(storage, monkeypatch, caplog, capfd):
    _, faults = storage
    data = Shards(URL)
    monkeypatch.setattr(remote, 'LIMIT', 0.5)
    faults.kind, faults.left = 'late', 1
    faults.requests.clear()
    assert np.array_equal(data.raw(0).permute(1, 2, 0), PIXELS[0])
    assert faults.requests.count('GET') >= 2
    faults.left = 10**6
    with raises_code('no-answer', 'TimeoutError') as raised:
        data.raw(5)
    output = caplog.text + ''.join(capfd.readouterr())
    assert_no_secrets(output + ''.join(traceback.format_exception(raised.value)))


def assert_no_secrets(text: str) -> None:
    assert not any(secret in text for secret in SECRETS)


@pytest.mark.parametrize('kind', ['expired', pytest.param('silent', marks=pytest.mark.slow)])
def test_refused_credentials_are_not_in_the_error(storage, kind):
    _, faults = storage
    data = Shards(URL)
    faults.kind, faults.left = kind, 10**6
    with raises_code('remote-refused', 's3://images/train-1.tar') as raised:
        data.raw(5)
    assert_no_secrets(''.join(traceback.format_exception(raised.value)))
    assert b'verysecret' not in pickle.dumps(data)


@pytest.mark.slow
def test_replaced_or_removed_object_is_an_error(storage):
    client, _ = storage
    data = Shards(URL)
    data.raw(4)
    changed = numbered_shard(255 - PIXELS[4:8], 4)
    client.put_object(Bucket='images', Key='train-1.tar', Body=changed)
    client.delete_object(Bucket='images', Key='train-2.tar')
    with raises_code('shard-changed', 'train-1.tar'):
        data.raw(5)
    with raises_code('remote-missing', 'train-2.tar'):
        data.raw(9)


@pytest.mark.slow
def test_url_with_a_version_reads_that_version(storage):
    client, _ = storage
    versioning = partial(client.put_bucket_versioning, Bucket='images')
    versioning(VersioningConfiguration=dict(Status='Enabled'))
    put = partial(client.put_object, Bucket='images', Key='versions.tar')
    first = put(Body=SHARDS['train-0.tar'])['VersionId']
    put(Body=SHARDS['train-1.tar'])
    for query, image in [(f'?versionId={first}', 0), ('', 4)]:
        data = Shards(f's3://images/versions.tar{query}')
        assert int(data.raw(0)[0, 0, 0]) == PIXELS[image, 0, 0, 0]
    versioning(VersioningConfiguration=dict(Status='Suspended'))
