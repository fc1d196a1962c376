"""No output contains a secret of a URL, and the list of error messages is up to date."""

import logging
import re
from pathlib import Path

import pytest
import yaml
from harness.error_messages import LIST, listing

from mmairl.data.shards.remote import call_remote
from mmairl.engine import run
from mmairl.errors import UserError, holds_secret, refuse_secret, without_secrets

STUDIES = Path(__file__).parents[1] / 'configs/studies'
SECRET = [
    'https://host/a.tar?X-Amz-Credential=AK%2F1&X-Amz-Signature=verysecret',
    'https://host/a.tar?AWSAccessKeyId=AK&Expires=1&Signature=verysecret',
    'https://host/a.tar?Expires=1&Policy=x&Key-Pair-Id=verysecret',
    'https://host/a.tar?GoogleAccessId=me&X-Goog-Signature=verysecret',
    'https://host/a.tar?sv=1&s%69g=verysecret',
    'https://host/a.tar?download=true&access_token=verysecret',
    'https://host/a.tar#token=verysecret',
    'https://me:verysecret@host/a.tar',
    'https://verysecret@host/a.tar',
    's3://AKIA:very/verysecret@bucket/{0..9}.tar',
    'zip://a.png::https://me:p@verysecret@host/a.zip',
    'https://host/a.tar?jwt=verysecret',
    'https://host/a.tar?verysecret',
    'https://host/a.tar?hdnts=exp=1~hmac=verysecret',
    'https://host/a.tar?st=verysecret&f=.tar',
    'https://host/a.tar;jsessionid=verysecret',
    'https://host/a;p=verysecret/b.tar',
    'https://host/a.tar#verysecret',
    'https://host/a.tar?versionId=1&x=verysecret',
    'https://host/a.tar?versionId=1;x=verysecret',
    'https://host/a.tar?download=verysecret',
    "https://host/a/it's.tar?x=verysecret",
    "https://host/a.tar?x=a'verysecret",
    'simplecache::https://host/a.tar?x=verysecret',
    'simplecache::https://verysecret@host/a.tar',
    'zip://a.png?verysecret::https://host/a.zip',
]
OPEN = [
    's3://bucket/a-{000..146}.tar', 'hf://datasets/me/shapes@main/a.parquet', 'https://host:8080/a.tar?download=true',
    's3://bucket/a.tar?versionId=3sL4kqtJ+/', 'file:///a?b#c;d.tar', 'tcp://127.0.0.1:29500',
    'sftp://me@host/a.tar', 'zip://a.png::hf://datasets/me/shapes@main/a.zip', 'file:///a b/c:d@e.tar', '/data/a?sig=b@c:d',
]  # fmt: skip


@pytest.mark.parametrize('url', SECRET)
def test_url_is_printed_without_its_secret(url):
    assert holds_secret(url) and holds_secret(f'a list of [{url}]')
    text = without_secrets(f"the shard '{url}' is gone; bring {url} back")
    assert 'verysecret' not in text and '@' not in text and '?' not in text
    assert any(place in text for place in ('host/a', 'bucket/', 'zip://a.png'))
    with pytest.raises(UserError) as raised:
        call_remote(url, 'stamp')
    assert raised.value.code == 'secret-in-url' and 'verysecret' not in str(raised.value)


@pytest.mark.parametrize('url', OPEN)
def test_url_or_path_without_a_secret_passes(url):
    assert not holds_secret(url)
    without_query = re.sub(r'\?(download|versionId)=.*', '', url)
    assert without_secrets(url) == without_query.replace('me@host', 'host')


def test_url_with_spaces_is_searched_to_its_end():
    with pytest.raises(UserError) as raised:
        refuse_secret(' https://host/my images/a.tar?x=verysecret', 'config key a.root')
    assert raised.value.code == 'secret-in-url' and 'verysecret' not in str(raised.value)


def test_sentence_around_a_url_keeps_its_punctuation():
    text = "see 'https://host/a.tar?x=1'; is it https://host/b.tar? (https://host/c#d)."
    assert without_secrets(text) == "see 'https://host/a.tar'; is it https://host/b.tar? (https://host/c)."
    assert not holds_secret("see 'https://host/a.tar'; is it https://host/b.tar?")


@pytest.mark.parametrize('url', [SECRET[0], SECRET[9], SECRET[14], SECRET[15]])
def test_no_output_contains_a_secret(url, tmp_path, toy_config, run_tool, monkeypatch, capfd):
    """The config comes from Python or from a command. The test searches all files and all output for the secret."""
    monkeypatch.chdir(tmp_path)
    study = dict(
        title='a', rows=[dict(name='a', config='mocov2_r50_200e.py', options={'train_dataloader.dataset.root': url})]
    )
    (tmp_path / 'call_remote.yaml').write_text(yaml.safe_dump(study))
    with pytest.raises(UserError) as raised:
        run.train(toy_config(steps=1, **{'train_dataloader.dataset.root': url}))
    assert raised.value.code == 'secret-in-url'
    demo, option = 'configs/demo/mocov2plus_shapes.py', f'evaluation.train.root={url}'
    home = STUDIES.parents[1]
    for words in (
        ('tools/train.py', home / demo, '--cfg-options', option),
        ('tools/train.py', home / demo, '--dump-config', 'dumped.yaml', '--cfg-options', option),
        ('tools/train.py', home / demo, '--cfg-options', f'a=[{url}'),
        ('tools/train.py', home / demo, '--resume', url),
        ('tools/evaluate.py', 'knn', home / demo, url),
        ('tools/evaluate.py', 'knn', home / demo, 'a.pth', '--cfg-options', option),
        ('tools/study.py', 'call_remote.yaml', '--scale', 'demo'),
    ):
        with pytest.raises(SystemExit, match='2'):
            run_tool(*words)
    (tmp_path / 'call_remote.yaml').unlink()
    logging.shutdown()
    paths = [path for path in tmp_path.rglob('*') if path.is_file()]
    output = capfd.readouterr()
    assert not [path for path in paths if b'verysecret' in path.read_bytes()]
    assert 'verysecret' not in output.out + output.err and output.err.count('error: ') == 7


def test_list_of_messages_is_current():
    """With the list, reviewers see all changes of wording in one file."""
    assert LIST.read_text() == listing(), 'the list is outdated; run PYTHONPATH=tests python -m harness.error_messages'
