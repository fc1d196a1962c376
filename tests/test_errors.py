"""Errors of commands: no secret of a URL is said or kept."""

import logging
from pathlib import Path

import pytest
import yaml

from mmairl.data.shards.far import filesystem
from mmairl.engine import launch
from mmairl.errors import UserError, holds_secret, without_secrets

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
]
OPEN = [
    's3://bucket/a-{000..146}.tar', 'hf://datasets/me/shapes@main/a.parquet', 'https://host:8080/a.tar?download=true',
    'sftp://me@host/a.tar', 'zip://a.png::hf://datasets/me/shapes@main/a.zip', 'file:///a b/c:d@e.tar', '/data/a?sig=b@c:d',
]  # fmt: skip


@pytest.mark.parametrize('url', SECRET)
def test_a_url_with_a_secret_is_known_and_printed_without_it(url):
    assert holds_secret(url) and holds_secret(f'a list of [{url}]')
    said = without_secrets(f"the shard '{url}' is gone; bring {url} back")
    assert ('verysecret' not in said and '@' not in said and '?' not in said and 'host/a' in said) or 'bucket/' in said
    with pytest.raises(UserError) as raised:
        filesystem(url)
    assert 'verysecret' not in str(raised.value)


@pytest.mark.parametrize('url', OPEN)
def test_a_url_or_path_without_a_secret_is_none(url):
    assert not holds_secret(url)
    assert without_secrets(url) == url.replace('?download=true', '').replace('me@host', 'host')


@pytest.mark.parametrize('url', SECRET[:1] + SECRET[-2:-1])
def test_a_run_an_evaluation_and_a_study_leave_nothing_of_a_secret(
    url, tmp_path, toy_config, run_tool, monkeypatch, capfd
):
    """Also where the config comes from Python, as to the platform's own tool; all bytes that are left are searched."""
    monkeypatch.chdir(tmp_path)
    study = dict(
        title='a', rows=[dict(name='a', config='mocov2_r50_200e.py', options={'train_dataloader.dataset.root': url})]
    )
    (tmp_path / 'asked.yaml').write_text(yaml.safe_dump(study))
    with pytest.raises(UserError, match='URL with a secret'):
        launch.train(toy_config(steps=1, **{'train_dataloader.dataset.root': url}))
    demo, option = 'configs/demo/mocov2plus_shapes.py', f'evaluation.train.root={url}'
    home = STUDIES.parents[1]
    for words in (
        ('tools/train.py', home / demo, '--cfg-options', option),
        ('tools/train.py', home / demo, '--dump-config', 'dumped.yaml', '--cfg-options', option),
        ('tools/train.py', home / demo, '--cfg-options', f'a=[{url}'),
        ('tools/train.py', home / demo, '--resume', url),
        ('tools/evaluate.py', 'knn', home / demo, url),
        ('tools/evaluate.py', 'knn', home / demo, 'a.pth', '--cfg-options', option),
        ('tools/study.py', 'asked.yaml', '--scale', 'demo'),
    ):
        with pytest.raises(SystemExit, match='2'):
            run_tool(*words)
    (tmp_path / 'asked.yaml').unlink()
    logging.shutdown()
    left = [path for path in tmp_path.rglob('*') if path.is_file()]
    told = capfd.readouterr()
    assert not [path for path in left if b'verysecret' in path.read_bytes()]
    assert 'verysecret' not in told.out + told.err and told.err.count('error: ') == 7
