"""Shards on a real S3 server on the loopback: read in place or through a node's cache, and what goes wrong in a sentence."""

import errno
import pickle
import shutil
import threading
import time
import traceback
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from data.archives import archive, png
from torch.utils.data import DataLoader

from mmairl.data.datasets import ViewDataset
from mmairl.data.sampler import ResumableSampler
from mmairl.data.shards import cache, far
from mmairl.data.shards import dataset as shards
from mmairl.data.shards.dataset import Shards
from mmairl.data.training_images import TrainingImages
from mmairl.errors import UserError

moto = pytest.importorskip('moto.server', reason='moto and s3fs are not installed (pip install "moto[server]" s3fs)')
s3fs = pytest.importorskip('s3fs', reason='s3fs is not installed (pip install s3fs)')
import boto3  # noqa: E402

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 9, 7, 3), dtype=np.uint8)


PAUSES = {'slow': 0.1, 'late': 3}  # seconds of the server, before an answer
CODES = {'503': 'SlowDown', '400': 'ExpiredToken', '403': 'AccessDenied'}


class Faults:
    """The server's next answers: a status, a cut body, a pause, or a status without a word, as S3 answers a HEAD."""

    def __init__(self, application) -> None:
        self.application, self.left, self.kind, self.requests = application, 0, '', []

    def __call__(self, environ, start_response):
        self.requests.append((environ['REQUEST_METHOD'], environ['PATH_INFO']))
        if not self.left or environ['REQUEST_METHOD'] != ('HEAD' if self.kind == 'silent' else 'GET'):
            return self.application(environ, start_response)
        self.left -= 1
        if self.kind == 'silent':
            start_response('400 Bad Request', [])
            return []
        if self.kind in PAUSES:
            time.sleep(PAUSES[self.kind])
            return self.application(environ, start_response)
        if self.kind.isdigit():
            start_response(f'{self.kind} fault', [('Content-Type', 'application/xml')])
            return [f'<Error><Code>{CODES[self.kind]}</Code><Message>m</Message></Error>'.encode()]
        body = b''.join(self.application(environ, start_response))
        return [body[: len(body) // 2]]  # under the length that was announced


@pytest.fixture(scope='module')
def server():
    served = moto.ThreadedMotoServer(port=0, verbose=False)
    served.start()
    _, port = served.get_host_and_port()
    yield served, f'http://127.0.0.1:{port}'
    served.stop()


def shard(pixels: np.ndarray, first: int) -> bytes:
    """Pack these images, numbered from `first` on."""
    members = {}
    for at, image in enumerate(pixels, first):
        members |= {f'{at}.png': png(image), f'{at}.cls': b'%d' % (at % 3)}
    return archive(members)


SHARDS = {f'train-{at // 4}.tar': shard(PIXELS[at : at + 4], at) for at in (0, 4, 8)}
URL = 's3://images/train-{0..2}.tar'


@pytest.fixture
def storage(server, own_cache, clock, monkeypatch):
    """A bucket with three shards; a client of it, and the faults of its server."""
    served, url = server
    for name, value in dict(
        AWS_ENDPOINT_URL=url,
        AWS_ACCESS_KEY_ID='AKIAPUBLIC',
        AWS_SECRET_ACCESS_KEY='verysecret',
        AWS_DEFAULT_REGION='us-east-1',
        AWS_MAX_ATTEMPTS='1',
    ).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(far, 'PATIENCE', 1)
    monkeypatch.setattr(s3fs.S3FileSystem, 'retries', 1)
    s3fs.S3FileSystem.clear_instance_cache()
    client = boto3.client('s3')
    client.create_bucket(Bucket='images')
    for name, content in SHARDS.items():
        client.put_object(Bucket='images', Key=name, Body=content)
    shards.open_shard.cache_clear()
    far.open_remote.cache_clear()
    served._server.app = faults = Faults(getattr(served._server.app, 'application', served._server.app))
    yield client, faults
    faults.left = 0


def all_pixels(data: Shards, workers: int = 0) -> np.ndarray:
    (batch,) = DataLoader(data, batch_size=12, num_workers=workers)
    return batch['inputs'][0].permute(0, 2, 3, 1).numpy()


def test_images_are_those_that_were_put_there_with_and_without_a_cache_and_in_workers(storage, tmp_path):
    client, faults = storage
    data = Shards(URL)
    assert data.labels.tolist() == [0, 1, 2] * 4 and np.array_equal(all_pixels(data), PIXELS)
    assert np.array_equal(all_pixels(data, workers=1), PIXELS)
    (tmp_path / 'list.txt').write_text(f'# of the bucket\n{URL}\n')
    for place in ('s3://images/', 's3://images/train-*.tar', tmp_path / 'list.txt'):
        assert Shards(place).contents.shards == data.contents.shards
    client.put_object(Bucket='images', Key='few/x-00000-of-00002.tar', Body=SHARDS['train-0.tar'])
    for place, said in [('s3://images/none-*.tar', 'names no shard'), ('s3://images/few', '1 of the 00002 shards are')]:
        with pytest.raises(UserError, match=said):
            Shards(place)
    cached = Shards(URL, cache=tmp_path / 'node')
    assert np.array_equal(all_pixels(cached, workers=1), PIXELS)
    assert sorted(file.read_bytes() for file in cached.cache.folder.glob('*.tar')) == sorted(SHARDS.values())
    before = len(faults.requests)
    assert np.array_equal(all_pixels(Shards(URL, cache=tmp_path / 'node')), PIXELS)
    assert {method for method, _ in faults.requests[before:]} == {'HEAD'}, (
        'the second time, only versions are asked for'
    )


@pytest.mark.parametrize('kind', ['503', 'cut'])
def test_a_storage_that_fails_for_a_while_is_asked_again_and_one_that_goes_on_failing_is_named(storage, kind):
    _, faults = storage
    faults.kind, faults.left = kind, 2
    data = Shards(URL)
    faults.left = 2
    assert np.array_equal(all_pixels(data), PIXELS)
    faults.left = 10**6
    with pytest.raises(UserError, match=r'storage does not answer \(.* at s3://images/train-0.tar\) after 4 tries'):
        Shards(URL).raw(0)


def test_a_slow_answer_is_waited_for_and_one_that_is_late_is_asked_for_again(storage, monkeypatch, caplog, capfd):
    _, faults = storage
    data = Shards(URL)
    monkeypatch.setattr(far, 'LIMIT', 0.5)
    for kind in ('slow', 'late'):
        faults.kind, faults.left, before = kind, 1, len(faults.requests)
        assert torch.equal(data.raw(0), torch.from_numpy(PIXELS[0]).permute(2, 0, 1))
        assert faults.left == 0
    assert [method for method, _ in faults.requests[before:]].count('GET') > 1
    faults.left = 10**6
    with pytest.raises(
        UserError, match='does not answer .no whole answer within 0 s at s3://images/train-1.tar. after 4 tries'
    ) as raised:
        data.raw(5)
    said = caplog.text + ''.join(capfd.readouterr()) + ''.join(traceback.format_exception(raised.value))
    assert 'verysecret' not in said and 'AKIAPUBLIC' not in said


@pytest.mark.parametrize(('kind', 'meaning'), {
    '400': 'the credentials for s3://images/train-1.tar have expired',
    '403': 'the storage does not let this user read s3://images/train-1.tar; correct',
    'silent': 'the storage refuses s3://images/train-1.tar and does not say why: most often the credentials have expired',
}.items())  # fmt: skip
def test_credentials_that_end_are_one_sentence_without_them(storage, kind, meaning):
    _, faults = storage
    data = Shards(URL)
    far.open_remote.cache_clear()
    faults.kind, faults.left = kind, 10**6
    with pytest.raises(UserError, match=meaning) as raised:
        data.raw(5)
    said = ''.join(traceback.format_exception(raised.value))
    assert 'verysecret' not in said and 'AKIAPUBLIC' not in said
    assert b'verysecret' not in pickle.dumps(data)
    with pytest.raises(UserError) as raised:
        Shards('https://me:verysecret@host/train.tar')
    assert raised.value.code == 'secret-in-url' and 'verysecret' not in str(raised.value)


@pytest.mark.parametrize('cached', [False, True])
@pytest.mark.parametrize('read_before', [False, True])
def test_an_object_that_changes_or_goes_is_one_sentence_and_never_other_images(storage, tmp_path, cached, read_before):
    client, _ = storage
    data = Shards(URL)
    data.cache = cache.NodeCache(tmp_path / 'node', 2**20) if cached else None
    if read_before:
        data.raw(4)
    changed = shard(255 - PIXELS[4:8], 4)
    assert len(changed) == len(SHARDS['train-1.tar'])
    client.put_object(Bucket='images', Key='train-1.tar', Body=changed)
    client.delete_object(Bucket='images', Key='train-2.tar')
    if cached and read_before:
        assert int(data.raw(5)[0, 0, 0]) == PIXELS[5, 0, 0, 0], 'as it was'
    else:
        with pytest.raises(UserError, match='train-1.tar has changed since'):
            data.raw(5)
    with pytest.raises(UserError, match='the shard s3://images/train-2.tar is not there'):
        data.raw(9)
    with pytest.raises(UserError, match='train-2.tar is not there'):
        Shards(URL)
    fresh = Shards('s3://images/train-{0..1}.tar')
    assert int(fresh.raw(5)[0, 0, 0]) == 255 - PIXELS[5, 0, 0, 0]


def test_url_with_a_version_reads_that_version(storage):
    client, _ = storage
    client.put_bucket_versioning(Bucket='images', VersioningConfiguration=dict(Status='Enabled'))
    first = client.put_object(Bucket='images', Key='versions.tar', Body=SHARDS['train-0.tar'])['VersionId']
    client.put_object(Bucket='images', Key='versions.tar', Body=SHARDS['train-1.tar'])
    for url, wanted in [(f's3://images/versions.tar?versionId={first}', 0), ('s3://images/versions.tar', 4)]:
        assert int(Shards(url).raw(0)[0, 0, 0]) == PIXELS[wanted, 0, 0, 0]
    client.put_bucket_versioning(Bucket='images', VersioningConfiguration=dict(Status='Suspended'))


def test_s3_that_is_away_is_retried(storage, clock, monkeypatch):
    monkeypatch.setenv('AWS_ENDPOINT_URL', 'http://127.0.0.1:1')
    monkeypatch.setattr(far, 'PATIENCE', 120)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(UserError, match='the storage does not answer'):
        Shards('s3://images/train-0.tar')
    assert clock.now > 60


def test_a_cache_keeps_to_its_size_and_lets_the_least_recently_used_go(storage, tmp_path):
    size = len(SHARDS['train-0.tar'])
    data = Shards(URL, cache=tmp_path / 'node', cache_size=int(2.5 * size))
    held = lambda: [one.read_bytes() for one in data.cache.folder.glob('*.tar')]  # noqa: E731
    (tmp_path / 'node/of_the_user.tar').write_bytes(bytes(3 * size))
    for index, kept in [(0, '0'), (4, '01'), (1, '01'), (8, '02'), (5, '12')]:
        time.sleep(0.02)
        shards.open_shard.cache_clear()  # a process asks again only for what it does not hold open
        assert torch.equal(data.raw(index), torch.from_numpy(PIXELS[index]).permute(2, 0, 1))
        assert {SHARDS[f'train-{at}.tar'] for at in kept} <= set(held()) and len(held()) <= 2
    with pytest.raises(UserError, match=f'a shard has {size}; set a larger cache_size'):
        Shards(URL, cache=tmp_path / 'small', cache_size=size - 1).raw(0)
    together = [Shards(URL, cache=tmp_path / 'shared', cache_size=10 * size) for _ in range(4)]
    threads = [threading.Thread(target=lambda one=one: all_pixels(one)) for one in together]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(list((tmp_path / 'shared').rglob('*.tar'))) == 3 and not list((tmp_path / 'shared').rglob('*.tmp'))
    assert (tmp_path / 'node/of_the_user.tar').exists()


def test_a_full_disk_is_said_at_once_and_a_run_by_shards_resumes_at_any_place(storage, tmp_path, monkeypatch):
    data = Shards(URL, cache=tmp_path / 'node')
    with monkeypatch.context() as full:
        full.setattr(cache, 'copy', Mock(side_effect=OSError(errno.ENOSPC, 'No space left on device')))
        shutil.rmtree(tmp_path / 'node')
        with pytest.raises(UserError, match='the disk is full: .*node/.* could not be written'):
            data.raw(0)
        assert cache.copy.call_count == 1
    sampler = ResumableSampler(TrainingImages(data), seed=3, order='shards', window=2)
    whole = list(sampler)
    sampler.set_epoch(0, start=5)
    assert sorted(index for index, _ in whole) == list(range(12)) and list(sampler) == whole[5:]
    assert len({index // 4 for index, _ in whole[:8]}) == 2 and len({seed for _, seed in whole}) == 12
    with pytest.raises(UserError, match="order='shards' does not fit ViewDataset"):
        ResumableSampler(ViewDataset(None), seed=3, order='shards')


class WholeFilesOnly(SimpleHTTPRequestHandler):
    """Python's own server of a folder, which knows no ranges."""

    def log_message(self, *_) -> None:
        pass


def test_a_server_that_knows_no_ranges_is_told(tmp_path, own_cache):
    (tmp_path / 'a.tar').write_bytes(SHARDS['train-0.tar'])
    with ThreadingHTTPServer(('127.0.0.1', 0), partial(WholeFilesOnly, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f'http://127.0.0.1:{server.server_port}'
        data = Shards(f'{url}/a.tar')
        with pytest.raises(UserError, match=f'the server of {url}/a.tar sends whole files only; download'):
            data.raw(2)
        with pytest.raises(UserError, match=f'the shard {url}/b.tar is not there'):
            Shards(f'{url}/b.tar')
        server.shutdown()


def test_a_bug_stays_a_bug_and_is_not_tried_again(clock):
    with pytest.raises(AttributeError, match='no attribute'):
        far.asked('memory://a', lambda system, path: system.nonsense)
    assert clock.slept == []
