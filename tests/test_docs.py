"""The documentation holds: every command parses or is run, every path and link in it exists, every example does what it says.

A fenced `bash` block whose commands are not tools of ours carries `<!-- not run: REASON -->` in the line above it.
"""

import argparse
import importlib.util
import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mmairl.configs import load_config
from mmairl.errors import UserError

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob('*.md'), *ROOT.glob('docs/**/*.md'), *ROOT.glob('projects/*/README.md')]
)
FENCE = re.compile(
    r'(?:<!-- not run: (?P<why>.+) -->\n)?^```(?P<kind>\w*)\n(?P<body>.*?)^```$', re.MULTILINE | re.DOTALL
)
TOOL = re.compile(r'(?:tools|projects)/[\w/]+\.(?:py|sh)$')
CODE = re.compile(r'(?<!`)`([^`\n]+)`(?!`)')
LINK = re.compile(r'!?\[[^\]]*\]\(([^)\s]+)\)')
OURS = re.compile(r'^(?:configs|projects|tools|tests|mmairl|requirements)/[\w./-]+$')
# Files that the reader has, or that a run leaves.
THEIRS = re.compile(r'^(?:work_dirs|data|build|dist)/')
# What a shell script passes to the tool behind it: the tool, how many words come first, and which of them it keeps.
BEHIND = {
    'tools/dist_train.sh': ('tools/train.py', 2, [0]),
    'tools/dist_evaluate.sh': ('tools/evaluate.py', 3, [1, 2]),
    'tools/slurm_train.sh': ('tools/train.py', 4, [2]),
}


class Wrong(AssertionError):
    """What a page says that is not so."""


class Parsed(BaseException):
    """Raised in place of running a tool, when its own parser has taken the command."""


def read(page: str) -> str:
    return (ROOT / page).read_text()


def prose(page: str) -> str:
    return FENCE.sub('', read(page))


def shown_files(page: str) -> dict[str, str]:
    """The examples of a page that are files, by the name in their first line."""
    bodies = [found['body'] for found in FENCE.finditer(read(page))]
    return {name[1]: body for body in bodies if (name := re.match(r'# ([\w./-]+\.(?:py|yaml))\n', body))}


def bash_lines(page: str) -> list[str]:
    """The command lines of a page; of a job script only those with a tool of ours."""
    lines = []
    for found in FENCE.finditer(read(page)):
        if found['kind'] == 'bash' and not found['why']:
            script = found['body'].startswith('#!')
            body = found['body'].replace('\\\n', ' ').splitlines()
            lines += [line for line in body if not script or any(map(TOOL.search, line.split()))]
    return lines


def commands(line: str) -> list[list[str]]:
    """A line as words, once for each alternative of a {brace,or,braces}; `[--part teacher]` as if it were given."""
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


def check_command(command: list[str], made: set[str]) -> None:
    """Hold one command to the tool that it names; raises Wrong with what is not so. `made` are files that exist by then."""
    command = list(itertools.dropwhile(lambda word: re.match(r'^[A-Z_]+=', word), command))
    tool = next((place for place, word in enumerate(command) if TOOL.search(word)), None)
    if tool is not None:
        words = itertools.takewhile(lambda word: word not in ('>', '|', '&&', '&', ';'), command[tool + 1 :])
        check_tool(command[tool], list(words), made)
    elif command[0] == 'make':
        known = ' '.join(re.findall(r'^([\w -]+):', read('Makefile'), re.MULTILINE)).split()
        if unknown := [word for word in command[1:] if '=' not in word and word not in known]:
            raise Wrong(f'the Makefile has no target {unknown[0]}')
    elif command[:2] == ['python', '-m'] and command[2].startswith(('mmairl.', 'projects.')):
        if importlib.util.find_spec(command[2]) is None:
            raise Wrong(f'there is no module {command[2]}')
    elif command[:2] != ['.', '.venv/bin/activate']:
        raise Wrong(f'{shlex.join(command)} is no tool of ours; say <!-- not run: REASON --> above the block')


def check_tool(script: str, words: list[str], made: set[str]) -> None:
    if not (ROOT / script).is_file():
        raise Wrong(f'there is no {script}')
    if script in BEHIND:
        tool, first, kept = BEHIND[script]
        if len(words) < first or any(word.startswith('-') for word in words[:first]):
            raise Wrong(f'{script} wants {first} arguments, and there are {shlex.join(words)}')
        script, words = tool, [words[place] for place in kept] + words[first:]
    parsed = parse(script, ['1' if word == 'N' else word for word in words])
    made.update(filter(None, [getattr(parsed, 'dump_config', None)]))
    for word in words:
        path = word.split('=')[-1]
        ours = OURS.match(path) or re.search(r'\.(?:py|ya?ml)$', path)
        if ours and not THEIRS.match(path) and path not in made and not (ROOT / path).exists():
            raise Wrong(f'there is no {path}')
    config, options = getattr(parsed, 'config', None), getattr(parsed, 'cfg_options', None)
    if options and config and (ROOT / config).is_file():
        check_options(config, options)


def check_options(config: str, options: dict) -> None:
    """The keys of --cfg-options are where the config has room for them."""
    try:
        cfg = load_config(str(ROOT / config))
        load_config(str(ROOT / config), options)
    except UserError as error:
        raise Wrong(str(error)) from error
    for key in options:
        found = cfg
        for part in key.split('.')[:-1]:
            found = found[int(part)] if isinstance(found, list) else (found or {}).get(part)
            if found is None:
                raise Wrong(f'{config} has no {key}')


def parse(script: str, words: list[str]) -> argparse.Namespace:
    """What the tool's own parser makes of the words; the tool itself is not run."""
    real = argparse.ArgumentParser.parse_args

    def stop(self: argparse.ArgumentParser, args: list[str] | None = None, namespace=None) -> None:
        raise Parsed(real(self, args, namespace))

    def refuse(self: argparse.ArgumentParser, message: str) -> None:
        raise Wrong(f'{script} {shlex.join(words)}: {message}')

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, 'parse_args', stop)
        patch.setattr(argparse.ArgumentParser, 'error', refuse)
        patch.setattr(sys, 'argv', [script, *words])
        try:
            module(script).main()
        except Parsed as parsed:
            return parsed.args[0]
    raise Wrong(f'{script} parses nothing')


def module(script: str) -> ModuleType:
    name = 'docs_' + re.sub(r'\W', '_', script)
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / script)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def is_there(page: str, path: str) -> bool:
    """A path of ours, from the top or from the page's own folder, as in a project."""
    if not OURS.match(path) or '..' in path or 'NAME' in path or path.startswith('mmairl/.mim/'):
        return True
    return (ROOT / path).exists() or (ROOT / page).parent.joinpath(path).exists()


def broken_link(page: str, target: str) -> str | None:
    if re.match(r'^[a-z]+:', target):
        return None
    path, _, anchor = target.partition('#')
    file = (ROOT / page).parent / path if path else ROOT / page
    if not file.exists():
        return f'{target} is not there'
    titles = re.findall(r'^#+ (.+)$', FENCE.sub('', file.read_text()), re.MULTILINE) if anchor else []
    anchors = {re.sub(r'[^\w\- ]', '', title.lower()).strip().replace(' ', '-') for title in titles}
    return f'{target} has no such heading' if anchor and anchor not in anchors else None


def unknown_option(span: str) -> str | None:
    """Spans such as `tools/train.py CONFIG --per-gpu N` leave things out, so only their options are held to the tool."""
    if not (found := re.match(r'^(?:python )?(tools/\w+\.(?:py|sh))\s', span)):
        return None
    script = BEHIND.get(found[1], [found[1]])[0]
    declared = set(re.findall(r"'(--[\w-]+)'", read(script)))
    unknown = [option for option in re.findall(r'(?<!\S)\[?(--[\w-]+)', span) if option not in declared]
    return f'{script} does not take {unknown[0]}' if unknown else None


@pytest.mark.parametrize('page', PAGES)
def test_every_command_is_one_that_its_tool_takes(page):
    made = set(shown_files(page))
    for line in bash_lines(page):
        for command in filter(None, commands(line)):
            check_command(command, made)


@pytest.mark.parametrize('page', PAGES)
def test_every_path_option_and_link_in_the_text_is_there(page):
    spans = CODE.findall(prose(page))
    missing = [path for span in spans for path in alternatives(span) if not is_there(page, path)]
    unknown = [said for span in spans if (said := unknown_option(span))]
    broken = [said for target in LINK.findall(prose(page)) if (said := broken_link(page, target))]
    assert not (missing or unknown or broken)


@pytest.mark.parametrize(
    ('command', 'says'),
    [
        ('python tools/train.py configs/mocov2plus_r50_200e.py --per-gpus 64', 'unrecognized arguments|--per-gpus'),
        ('python tools/train.py configs/mocov2plus_r50_20e.py', 'there is no configs/mocov2plus_r50_20e.py'),
        ('python tools/trains.py configs/mocov2plus_r50_200e.py', 'there is no tools/trains.py'),
        ('python tools/evaluate.py {knn,svn} CONFIG CKPT', 'svn'),
        ('tools/dist_train.sh configs/mocov2plus_r50_200e.py --amp', 'wants 2 arguments'),
        ('tools/slurm_train.sh PARTITION JOB configs/nothing.py work_dirs/x', 'there is no configs/nothing.py'),
        ('python tools/train.py configs/byol_r50_200e.py --cfg-options model.hed.type=A', 'has no model.hed.type'),
        ('make demoo', 'no target demoo'),
        ('pip install mmairl', 'no tool of ours'),
    ],
)
def test_a_wrong_command_is_found(command, says):
    with pytest.raises(Wrong, match=says):
        for words in commands(command):
            check_command(words, set())


def test_a_wrong_path_link_or_option_is_found():
    assert not is_there('README.md', 'configs/byol_r50_20e.py') and is_there('README.md', 'configs/byol_r50_200e.py')
    assert broken_link('README.md', 'docs/nothing.md') and broken_link('README.md', '#nothing')
    assert unknown_option('tools/train.py CONFIG --fast') and not unknown_option('tools/dist_train.sh CONFIG 8 --amp')


def test_every_page_is_in_the_sites_navigation():
    """Beside the tables that the page of benchmarks links."""
    missing = [page for page in PAGES if page.startswith('docs/') and f': {page[5:]}' not in read('mkdocs.yml')]
    assert all(page.startswith('docs/benchmarks/') for page in missing), missing


def test_every_entry_of_the_api_is_a_module():
    for name in re.findall(r'^::: (\S+)', read('docs/api.md'), re.MULTILINE):
        assert importlib.util.find_spec(name), name


# Cheap commands of the pages, with what makes them small; each is looked for in its page, so that it stays what is written.
TINY = (
    'train_dataloader.dataset.count=64 total_batch_size=32 train_cfg.max_epochs=1 default_hooks.checkpoint.interval=1'
)
RUN = [
    (
        'README.md',
        'first_run.py',
        "sed -e \"s/: 5}}/: 1, 'train_dataloader.dataset.count': 64, 'total_batch_size': 32, 'evaluation.train.count': 240, "
        "'evaluation.test.count': 24}}/\" -e s/epoch_5/epoch_1/ {} > small.py && python small.py",
        'k-NN, k = 20',
    ),
    ('docs/scale.md', 'python tools/train.py configs/mocov2plus_r50_200e.py --plan 4 --per-gpu 64', '{}', '1024 = 4'),
    ('docs/studies.md', 'python tools/study.py configs/studies/crossover.yaml --scale demo --dry-run', '{}', 'device'),
    ('docs/frameworks.md', 'python tools/factors.py', '{}', 'mocov2plus_lars'),
    (
        'docs/robustness.md',
        'python tools/train.py configs/mocov2plus_r50_200e.py --dump-config run.yaml',
        '{} && python tools/train.py run.yaml --plan 4 --per-gpu 64',
        '1024 = 4',
    ),
    (
        'docs/index.md',
        'python tools/train.py mine.py',
        f'{{}} --cfg-options {TINY} && '
        'python tools/evaluate.py knn mine.py work_dirs/mine/epoch_1.pth --cfg-options evaluation.train.count=48 '
        'evaluation.test.count=24 --k 5',
        'k-NN, k = 5',
    ),
    (
        'docs/add.md',
        'python tools/train.py slow_teacher.py',
        f'{{}} --cfg-options {TINY} && test -f work_dirs/slow_teacher/epoch_1.pth && echo trained',
        'trained',
    ),
    ('docs/add.md', 'python tools/study.py teachers.yaml --scale demo --dry-run', '{}', '0.999'),
    (
        'docs/add.md',
        'PYTHONPATH=. python tools/train.py byol_huber.py',
        f'{{}} --cfg-options {TINY} && test -f work_dirs/byol_huber/epoch_1.pth && echo trained',
        'trained',
    ),
    (
        'docs/add.md',
        'python tools/train.py simsiam.py',
        f'{{}} --cfg-options {TINY} && test -f work_dirs/simsiam/epoch_1.pth && echo trained',
        'trained',
    ),
    (
        'docs/add.md',
        'PYTHONPATH=. python tools/train.py posterized.py',
        f'{{}} --cfg-options {TINY} && test -f work_dirs/posterized/epoch_1.pth && echo trained',
        'trained',
    ),
    (
        'docs/add.md',
        'PYTHONPATH=. python tools/train.py on_stripes.py',
        f'{{}} --cfg-options {TINY} && PYTHONPATH=. python tools/evaluate.py knn on_stripes.py '
        'work_dirs/on_stripes/epoch_1.pth --cfg-options evaluation.train.count=48 evaluation.test.count=24 --k 5',
        'k-NN, k = 5',
    ),
    ('docs/add.md', 'python tools/train.py small_batch.yaml --plan 4 --per-gpu 64', '{}', '512 = 4 GPUs x 64'),
]


@pytest.mark.parametrize(('page', 'written', 'command', 'says'), RUN, ids=lambda value: str(value)[:40])
def test_what_the_page_shows_runs(page, written, command, says, tmp_path):
    text = re.sub(r'\s+', ' ', read(page))
    assert written in text, f'{page} has this command no more'
    for name in ('configs', 'tools', 'projects'):
        (tmp_path / name).symlink_to(ROOT / name)
    for name, body in shown_files(page).items():
        (tmp_path / name).write_text(body)
    said = shell(command.format(written), tmp_path)
    assert re.search(says, said), said[-3000:]


def shell(command: str, folder: Path) -> str:
    """A line as the reader would give it, with this environment's Python."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ['PATH']])
    env = {**os.environ, 'PATH': path, 'OMP_NUM_THREADS': '1', 'COLUMNS': '120'}
    done = subprocess.run(['bash', '-ec', command], cwd=folder, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_every_example_with_a_file_is_run():
    """A file that a page shows is named by a command that is run above, or by a file that one names."""
    for page in PAGES:
        shown = shown_files(page)
        run = ' '.join(written for where, written, *_ in RUN if where == page)
        bodies = ' '.join(body for file, body in shown.items() if file in run)
        for file in shown:
            assert file in run or f"'{Path(file).stem}'" in bodies, f'{page} shows {file}, which no test runs'
