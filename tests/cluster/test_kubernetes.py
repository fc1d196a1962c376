"""Both pods of the documented Kubernetes Job join one run. The test does not need Kubernetes."""

import os
import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_pods_of_the_documented_job_are_one_run(tmp_path):
    (tmp_path / 'python').write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / 'python').chmod(0o755)
    page = (ROOT / 'docs/how-to/clusters_and_resume.md').read_text()
    text = re.search(r'## Kubernetes.*?```yaml\n(.*?)```', page, re.DOTALL)[1]
    service, job = yaml.safe_load_all(text)
    name, spec = job['metadata']['name'], job['spec']
    pod = spec['template']['spec']
    (container,) = pod['containers']
    assert spec['completionMode'] == 'Indexed' and spec['completions'] == spec['parallelism'] == 2
    # Kubernetes adds this label to each pod of the job.
    assert service['spec']['selector'] == {'batch.kubernetes.io/job-name': name}
    assert spec['podFailurePolicy']['rules'][0]['onExitCodes']['values'] == [75] and pod['restartPolicy'] == 'Never'
    settings = {one['name']: one.get('value') for one in container['env']}
    # A pod of an Indexed Job has the host name NAME-INDEX.SUBDOMAIN. A headless service with the
    # name SUBDOMAIN resolves it.
    assert settings['MASTER_ADDR'] == f'{name}-0.{pod["subdomain"]}' and pod['subdomain'] == service['metadata']['name']
    for index in range(spec['completions']):
        variables = {**os.environ, **settings, 'NODE_RANK': str(index), 'PYTHON': str(tmp_path / 'python')}
        process = subprocess.run(
            container['command'], cwd=ROOT, env=variables, capture_output=True, text=True, check=True
        )
        words = process.stdout.splitlines()
        assert words[:4] == ['-m', 'mmairl.engine.launcher', f'--nnodes={settings["NNODES"]}', f'--node_rank={index}']
        assert {f'--master_addr={settings["MASTER_ADDR"]}', '--nproc_per_node=8', '--resume'} <= set(words)
        assert (ROOT / words[words.index('--launcher') - 1]).is_file()
