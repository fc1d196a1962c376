"""Check the documentation: commands parse or run, paths and links exist, and examples work.

A fenced `bash` block with commands of other programs must have `<!-- not run: REASON -->` in the line above it.
"""

import argparse
import doctest
import importlib.util
import itertools
import re
import runpy
import shlex
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml
from packaging.requirements import Requirement
from PIL import Image

import mmairl
from mmairl.cli.main import COMMANDS
from mmairl.config import load_config
from mmairl.engine.checks import check_config

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob('*.md'), *ROOT.glob('docs/**/*.md'), *ROOT.glob('projects/*/README.md')]
)
FENCE = re.compile(
    r'(?:<!-- not run: (?P<why>[^\n]+) -->\n)?^```(?P<kind>\w*)\n(?P<body>.*?)^```$', re.MULTILINE | re.DOTALL
)
TOOL = re.compile(r'(?:tools|projects)/[\w/]+\.(?:py|sh)$')
CODE = re.compile(r'(?<!`)`([^`\n]+)`(?!`)')
LINK = re.compile(r'!?\[[^\]]*\]\(([^)\s]+)\)')
OURS = re.compile(r'^(?:configs|projects|tools|tests|mmairl|requirements)/[\w./-]+$')
# Files in these folders belong to the reader or are written by runs, so they need not exist.
THEIRS = re.compile(r'^(?:work_dirs|data|build|dist)/')
# For each shell script: the tool that it calls, the number of positional arguments of the script, and
# the indices of those that the script passes to the tool.
BEHIND = {
    'tools/dist_train.sh': ('tools/train.py', 2, [0]),
    'tools/dist_evaluate.sh': ('tools/evaluate.py', 3, [1, 2]),
    'tools/slurm_train.sh': ('tools/train.py', 4, [2]),
    'tools/slurm_job.sh': ('tools/train.py', 2, [0]),
}


class Parsed(BaseException):
    """Raised in place of running a tool, after its parser has accepted the command."""


def read(page: str) -> str:
    return (ROOT / page).read_text()


def prose(page: str) -> str:
    return FENCE.sub('', read(page))


def shown_files(page: str) -> dict[str, str]:
    """Return the example files of a page. The key is the file name that the first line of an example states."""
    bodies = [block['body'] for block in FENCE.finditer(read(page))]
    return {name[1]: body for body in bodies if (name := re.match(r'# ([\w./-]+\.(?:py|yaml))\n', body))}


def bash_lines(page: str) -> list[str]:
    """Return the command lines of a page. From a job script, return only lines with one of our tools."""
    lines = []
    for block in FENCE.finditer(read(page)):
        if block['kind'] == 'bash' and not block['why']:
            script = block['body'].startswith('#!')
            body = block['body'].replace('\\\n', ' ').splitlines()
            lines += [line for line in body if not script or any(map(TOOL.search, line.split()))]
    return lines


def commands(line: str) -> list[list[str]]:
    """Return one list of words for each alternative in {a,brace} of a line. Brackets around optional words are dropped."""
    words = [word.strip('[]').removesuffix('...') for word in shlex.split(line, comments=True)]
    options = [alternatives(word) for word in words]
    most = max(map(len, options), default=0)
    return [[option[place % len(option)] for option in options] for place in range(most)]


def alternatives(word: str) -> list[str]:
    brace = re.search(r'\{([^{}]*,[^{}]*)\}', word)
    if not brace:
        return [word]
    before, after = word[: brace.start()], word[brace.end() :]
    return [other for choice in brace[1].split(',') for other in alternatives(before + choice + after)]


def check_command(command: list[str], written_files: set[str]) -> None:
    """Check a command with the parser of its tool. `written_files` are the files that earlier
    commands of the page have written.
    """
    command = list(itertools.dropwhile(lambda word: re.match(r'^[A-Z_]+=', word), command))
    if command[0] == 'mmairl':
        command = [f'tools/{command[1]}.py', *command[2:]]
    tool = next((place for place, word in enumerate(command) if TOOL.search(word)), None)
    if tool is not None:
        words = itertools.takewhile(lambda word: word not in ('>', '|', '&&', '&', ';'), command[tool + 1 :])
        check_tool(command[tool], list(words), written_files)
    elif command[0] == 'make':
        targets = ' '.join(re.findall(r'^([\w -]+):', read('Makefile'), re.MULTILINE)).split()
        assert all('=' in word or word in targets for word in command[1:]), 'the Makefile has no such target'
    elif command[:2] == ['python', '-m'] and command[2].startswith(('mmairl.', 'projects.')):
        assert importlib.util.find_spec(command[2]), f'there is no module {command[2]}'
    else:
        assert command[:2] == ['.', '.venv/bin/activate'], (
            f'{command} is not a tool; write <!-- not run: REASON --> above'
        )


def check_tool(script: str, words: list[str], written_files: set[str]) -> None:
    if script in BEHIND:
        tool, first, forwarded = BEHIND[script]
        assert len(words) >= first and not any(word.startswith('-') for word in words[:first]), (
            f'{script} requires {first} positional arguments'
        )
        script, words = tool, [words[place] for place in forwarded] + words[first:]
    parsed = parse(script, ['1' if word == 'N' else word for word in words])
    written_files.update(filter(None, [getattr(parsed, 'dump_config', None)]))
    for word in words:
        path = word.split('=')[-1]
        ours = OURS.match(path) or re.search(r'\.(?:py|ya?ml)$', path)
        assert not ours or THEIRS.match(path) or path in written_files or (ROOT / path).exists(), f'there is no {path}'
    config, options = getattr(parsed, 'config', None), getattr(parsed, 'cfg_options', None)
    if options and config and (ROOT / config).is_file():
        check_config(load_config(ROOT / config, options))


def parse(script: str, words: list[str]) -> argparse.Namespace:
    """Return the arguments that the tool's parser reads. The tool itself does not run."""
    real = argparse.ArgumentParser.parse_args

    def stop(self: argparse.ArgumentParser, args: list[str] | None = None, namespace=None) -> None:
        raise Parsed(real(self, args, namespace))

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Parsed) as parsed:
        patch.setattr(argparse.ArgumentParser, 'parse_args', stop)
        run(script, words)
    return parsed.value.args[0]


def run(script: str, words: list[str]) -> None:
    """Run a tool in this process."""
    if (command := Path(script).stem) in COMMANDS:
        importlib.import_module(f'mmairl.cli.{command}').main(words)
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, 'argv', [script, *words])
        module(script).main()


def module(script: str) -> ModuleType:
    name = 'docs_' + re.sub(r'\W', '_', script)
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / script)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def is_there(page: str, path: str) -> bool:
    """Return whether a path of this repository exists, seen from its root or from the folder of the page.

    Return True for all other paths.
    """
    if not OURS.match(path) or '..' in path or 'NAME' in path or path.startswith('mmairl/.mim/'):
        return True
    return (ROOT / path).exists() or (ROOT / page).parent.joinpath(path).exists()


def broken_link(page: str, target: str) -> str | None:
    if re.match(r'^[a-z]+:', target):
        return None
    path, _, anchor = target.partition('#')
    file = (ROOT / page).parent / path if path else ROOT / page
    if not file.exists():
        return f'{target} does not exist'
    titles = re.findall(r'^#+ (.+)$', FENCE.sub('', file.read_text()), re.MULTILINE) if anchor else []
    anchors = {re.sub(r'[^\w\- ]', '', title.lower()).strip().replace(' ', '-') for title in titles}
    return f'{target} has no such heading' if anchor and anchor not in anchors else None


def test_commands_are_accepted_by_their_tools():
    for page in PAGES:
        written_files = set(shown_files(page))
        for command in itertools.chain.from_iterable(map(commands, bash_lines(page))):
            if command:
                check_command(command, written_files)


def test_paths_and_links_exist():
    wrong = []
    for page in PAGES:
        # Older entries of the changelog have former paths.
        spans = CODE.findall(prose(page)) if page != 'CHANGELOG.md' else []
        wrong += [(page, path) for span in spans for path in alternatives(span) if not is_there(page, path)]
        wrong += [(page, message) for target in LINK.findall(prose(page)) if (message := broken_link(page, target))]
    assert not wrong


def test_links_of_results_exist():
    """Commands and paths in results are those of an older commit, so only links are checked."""
    pages = [path.relative_to(ROOT).as_posix() for path in ROOT.glob('results/**/*.md')]
    assert pages
    links = [(page, link) for page in pages for link in LINK.findall(prose(page))]
    assert not [(page, message) for page, link in links if (message := broken_link(page, link))]


def test_commands_of_the_papers_page_are_accepted():
    for line in bash_lines('results/reproduce.md'):
        for command in commands(line):
            if command:
                check_command(command, set())


def test_site_lists_all_pages_and_modules():
    pages = [page for page in PAGES if page.startswith('docs/')]
    listed = re.findall(r'^ +- .+: (\S+\.md)$', read('mkdocs.yml'), re.MULTILINE)
    assert sorted(pages) == sorted(f'docs/{name}' for name in listed)
    modules = [name for page in pages for name in re.findall(r'^::: (\S+)', read(page), re.MULTILINE)]
    assert modules
    for name in modules:
        assert importlib.util.find_spec(name), name


def test_generated_reference_is_current():
    for path, text in module('docs/generate.py').pages().items():
        assert path.read_text() == text, 'the page is outdated; run python docs/generate.py'


def test_reference_has_every_struct():
    generator = module('docs/generate.py')
    page = read('docs/reference/study_yaml.md')
    assert set(re.findall(r'^<!-- (\w+) -->$', page, re.MULTILINE)) == set(generator.STRUCTS)


@pytest.fixture
def workflow() -> dict:
    return yaml.safe_load(read('.github/workflows/test.yml'))


def test_workflow_runs_both_test_targets(workflow):
    runs = {name: [step['run'] for step in job['steps'] if 'run' in step] for name, job in workflow['jobs'].items()}
    assert 'make test' in runs['test']
    assert 'make test-all' in runs['test-all']
    for line in [*runs['test'], *runs['test-all']]:
        if line.startswith('make'):
            check_command(shlex.split(line), set())


def test_ci_command_is_make_test():
    assert re.findall(r'^make [^|]*', read('.ci/run'), re.MULTILINE) == ['make test 2>&1 ']


def test_workflow_pythons_have_tested_versions(workflow):
    lines = [Requirement(line) for line in read('requirements/constraints.txt').splitlines() if line[0] != '#']
    for python in workflow['jobs']['test']['strategy']['matrix']['python']:
        environment = {'python_version': python}
        names = [one.name for one in lines if one.marker is None or one.marker.evaluate(environment)]
        assert len(names) == len(set(names)), python
        assert {'torch', 'numpy', 'scipy', 'matplotlib'} <= set(names), python


def test_citation_states_the_version_and_the_paper():
    citation = yaml.safe_load(read('CITATION.cff'))
    assert citation['version'] == mmairl.__version__
    assert citation['references'][0]['title'] in read('README.md')


def test_docstring_examples_run():
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for path in sorted((ROOT / 'mmairl').rglob('*.py')):
        if '>>>' in path.read_text():
            name = '.'.join(path.relative_to(ROOT).with_suffix('').parts)
            assert not doctest.testmod(importlib.import_module(name), optionflags=flags).failed, name


# Fast commands of the documentation. An entry has the command as a page shows it, options that
# shorten the run, and either a text that the command prints or a file that it writes. The command
# runs in a folder with the example files of the page.
TINY = (
    ' --cfg-options train_dataloader.dataset.count=64 total_batch_size=32 train_cfg.max_epochs=1 '
    'train_dataloader.num_workers=0 default_hooks.checkpoint.interval=1'
)
FEW = ' --cfg-options evaluation.train.count=48 evaluation.test.count=24 --k 5'
RUN = [
    ('tools/train.py mine.py', TINY, 'work_dirs/mine/epoch_1.pth'),
    ('tools/evaluate.py knn mine.py work_dirs/mine/epoch_30.pth', FEW, 'k-NN, k = 5'),
    ('tools/train.py slow_teacher.py', TINY, 'work_dirs/slow_teacher/epoch_1.pth'),
    ('tools/study.py teachers.yaml --scale demo --dry-run', '', '0.999'),
    ('tools/train.py byol_huber.py', TINY, 'work_dirs/byol_huber/epoch_1.pth'),
    ('tools/study.py crossed.yaml --scale demo --dry-run', '', 'predictor'),
    ('tools/train.py simsiam.py', TINY, 'work_dirs/simsiam/epoch_1.pth'),
    ('tools/train.py posterized.py', TINY, 'work_dirs/posterized/epoch_1.pth'),
    ('tools/train.py on_stripes.py', TINY, 'work_dirs/on_stripes/epoch_1.pth'),
    ('tools/evaluate.py knn on_stripes.py work_dirs/on_stripes/epoch_30.pth', FEW, 'k-NN, k = 5'),
    ('tools/train.py small_batch.yaml --plan 4 --per-gpu 64', '', '512 = 4 GPUs x 64'),
]


def runs_of(page: str) -> list[tuple[str, str, str]]:
    text = re.sub(r'\s+', ' ', read(page))
    return [entry for entry in RUN if re.search(rf'python {re.escape(entry[0])}(?! --)', text)]


def test_every_run_command_is_on_a_page():
    entries = [entry for page in PAGES for entry in runs_of(page)]
    assert not [command for command, *_ in RUN if command not in {entry[0] for entry in entries}]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Enter a new folder with links to the repository's folders, and return it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv('COLUMNS', '120')
    for name in ('configs', 'tools', 'projects'):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.mark.parametrize('page', [page for page in PAGES if runs_of(page)])
def test_commands_of_a_page_run(page, folder, capsys):
    for name, body in shown_files(page).items():
        (folder / name).write_text(body)
    for line, more, says in runs_of(page):
        script, *words = shlex.split(line.replace('epoch_30', 'epoch_1') + more)
        run(script, words)
        output = capsys.readouterr().out
        assert says in output or (folder / says).is_file(), output[-3000:]


def draw(folder: Path, count: int) -> Path:
    """Write a folder of small images. Return its path."""
    folder.mkdir()
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (count, 40, 40, 3), np.uint8)):
        Image.fromarray(pixels).save(folder / f'{number:02}.png')
    return folder


def test_python_of_the_readme_runs(folder):
    draw(folder / 'images', 64)
    script = shown_files('README.md')['first_run.py'].replace('epochs=100', 'epochs=1, size=32, workers=0, batch=32')
    (folder / 'first_run.py').write_text(script)
    match = runpy.run_path('first_run.py')
    assert match['features'].shape == (64, 512) and match['names'][63].endswith('63.png')


def test_python_of_your_images_runs(folder, capsys):
    small = {'count=1200': 'count=96', 'epochs=2': 'epochs=1', 'epoch_2': 'epoch_1'}
    for name, body in shown_files('docs/tutorials/your_images.md').items():
        (folder / name).write_text(re.sub('|'.join(small), lambda match: small[match[0]], body))
        names = runpy.run_path(name)
    assert names['features'].shape == (96, 512)
    assert 'show the same kind' in capsys.readouterr().out
