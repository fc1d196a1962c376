"""The documentation holds: every command parses or is run, every path in it exists, every example does what it says.

A fenced `bash` block whose commands are no tools of ours carries `<!-- not run: REASON -->` in the line above it.
"""

import argparse
import importlib.util
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from mmairl.engine.launch import load_config
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
TARGETS = re.compile(r'^([\w ]+):', re.MULTILINE)
OURS = re.compile(r'^(?:configs|projects|tools|tests|mmairl|requirements)/[\w./-]+$')
# Files that the reader has, or that a run leaves.
THEIRS = re.compile(r'^(?:work_dirs|data|build|dist)/')


class Wrong(AssertionError):
    """What a page says that is not so."""


class Parsed(BaseException):
    """Raised in place of running a tool, when its own parser has taken the command."""


@dataclass(frozen=True)
class Block:
    page: str
    kind: str
    body: str
    why: str | None  # it is not run, where the page says so

    @property
    def file(self) -> str | None:
        """The file that an example shows, named in its first line."""
        named = re.match(r'# ([\w./-]+\.(?:py|yaml))\n', self.body)
        return named[1] if named else None


def blocks(page: str, text: str | None = None) -> list[Block]:
    text = (ROOT / page).read_text() if text is None else text
    found = [Block(page, m['kind'], m['body'], m['why']) for m in FENCE.finditer(text)]
    indented = re.findall(r'^    (python (?:tools|projects)/.+)$', FENCE.sub('', text), re.MULTILINE)
    return [*found, *(Block(page, 'bash', line, None) for line in indented)]


def commands(block: Block) -> list[list[str]]:
    """The commands of a block as words, one for each alternative of a brace."""
    lines = block.body.replace('\\\n', ' ').splitlines()
    words = [word for line in lines for word in expanded(shlex.split(line, comments=True))]
    return [command for command in words if command]


def expanded(words: list[str]) -> Iterator[list[str]]:
    """`knn|linear` of {knn,linear}, one after the other; `[--part teacher]` as if it were given; `CKPT...` as one."""
    words = [word.strip('[]').removesuffix('...') for word in words]
    options = [alternatives(word) for word in words]
    for place in range(max(map(len, options), default=0)):
        yield [option[place % len(option)] for option in options]


def alternatives(word: str) -> list[str]:
    brace = re.search(r'\{([^{}]*,[^{}]*)\}', word)
    if not brace:
        return [word]
    return [
        other
        for part in brace[1].split(',')
        for other in alternatives(word[: brace.start()] + part + word[brace.end() :])
    ]


def check(command: list[str], made: set[str]) -> None:
    """Hold one command to the tool that it names; raises Wrong with what is not so."""
    command = list(itertools.dropwhile(lambda word: re.match(r'^[A-Z_]+=', word), command))
    tool = next((place for place, word in enumerate(command) if TOOL.search(word)), None)
    if tool is not None:
        script, *words = command[tool:]
        arguments = list(itertools.takewhile(lambda word: word not in ('>', '|', '&&', '&', ';'), words))
        check_tool(script, arguments, made)
    elif command[0] == 'make':
        known = ' '.join(TARGETS.findall((ROOT / 'Makefile').read_text())).split()
        if unknown := [word for word in command[1:] if '=' not in word and word not in known]:
            raise Wrong(f'the Makefile has no target {unknown[0]}')
    elif command[:2] == ['python', '-m'] and command[2].startswith('mmairl.'):
        if importlib.util.find_spec(command[2]) is None:
            raise Wrong(f'there is no module {command[2]}')
    elif command[:2] != ['.', '.venv/bin/activate']:
        raise Wrong(f'{shlex.join(command)} is no tool of ours; say <!-- not run: REASON --> above the block')


def check_tool(script: str, words: list[str], made: set[str]) -> None:
    if not (ROOT / script).is_file():
        raise Wrong(f'there is no {script}')
    if script.endswith('.sh'):
        script, words = behind(script, words)
    parsed = parse(script, ['1' if word == 'N' else word for word in words])
    made.update(filter(None, [getattr(parsed, 'dump_config', None)]))
    for word in words:
        check_path(word.split('=')[-1], made)
    config, options = getattr(parsed, 'config', None), getattr(parsed, 'cfg_options', None)
    if options and config and (ROOT / config).is_file():
        check_options(config, options)


def behind(script: str, words: list[str]) -> tuple[str, list[str]]:
    """What a shell script hands to the tool behind it, by its usage line."""
    order = {
        'tools/dist_train.sh': ('tools/train.py', 2, [0]),
        'tools/dist_evaluate.sh': ('tools/evaluate.py', 3, [1, 2]),
        'tools/slurm_train.sh': ('tools/train.py', 4, [2]),
    }
    tool, least, kept = order[script]
    if len(words) < least or not words[{'tools/dist_train.sh': 1}.get(script, 0)].isalnum():
        raise Wrong(f'{script} wants {least} arguments, and there are {shlex.join(words)}')
    return tool, [words[place] for place in kept] + words[least:]


def parse(script: str, words: list[str]) -> argparse.Namespace:
    """What the tool's own parser makes of the words; the tool itself is not run."""
    real, argv = argparse.ArgumentParser.parse_args, sys.argv

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
        finally:
            sys.argv = argv
    raise Wrong(f'{script} parses nothing')


def module(script: str) -> ModuleType:
    name = 'docs_' + re.sub(r'\W', '_', script)
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / script)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def check_path(word: str, made: set[str]) -> None:
    """A path of ours must be there; so must a config by any name, unless the page makes it."""
    named = OURS.match(word) or re.search(r'\.(?:py|ya?ml)$', word)
    if named and not THEIRS.match(word) and word not in made and not (ROOT / word).exists():
        raise Wrong(f'there is no {word}')


def check_options(config: str, options: dict) -> None:
    """The keys of --cfg-options are where the config has room for them."""
    try:
        cfg = load_config(str(ROOT / config))
        load_config(str(ROOT / config), options)
    except UserError as error:
        raise Wrong(str(error)) from error
    for key in options:
        inside, *inner = key.split('.')
        found = cfg.get(inside)
        for part in inner[:-1]:
            found = found[int(part)] if isinstance(found, list) else (found or {}).get(part)
            if found is None:
                raise Wrong(f'{config} has no {key}')


def known_files(page: str) -> set[str]:
    return {block.file for block in blocks(page) if block.file}


@pytest.mark.parametrize('page', PAGES)
def test_every_command_is_one_that_its_tool_takes(page):
    made = known_files(page)
    for block in blocks(page):
        if block.kind != 'bash' or block.why:
            continue
        script = block.body.startswith('#!')  # a job script: its other lines are the shell's
        for command in commands(block):
            if not script or any(TOOL.search(word) for word in command):
                check(command, made)


@pytest.mark.parametrize(
    ('command', 'said'),
    [
        ('python tools/train.py configs/mocov2plus_r50_200e.py --per-gpus 64', 'unrecognized arguments|--per-gpus'),
        ('python tools/train.py configs/mocov2plus_r50_20e.py', 'there is no configs/mocov2plus_r50_20e.py'),
        ('python tools/trains.py configs/mocov2plus_r50_200e.py', 'there is no tools/trains.py'),
        ('python tools/train.py mine.py', 'there is no mine.py'),
        ('python tools/evaluate.py {knn,svn} CONFIG CKPT', 'svn'),
        ('tools/dist_train.sh configs/mocov2plus_r50_200e.py --amp', 'wants 2 arguments'),
        ('tools/dist_train.sh configs/mocov2plus_r50_200e.py 8 --fast', 'unrecognized'),
        ('tools/slurm_train.sh PARTITION JOB configs/nothing.py work_dirs/x', 'there is no configs/nothing.py'),
        ('python tools/train.py configs/byol_r50_200e.py --cfg-options modle.queue=None', "no 'modle'"),
        ('python tools/train.py configs/byol_r50_200e.py --cfg-options model.hed.type=A', 'has no model.hed.type'),
        ('python tools/report.py health D --outt x', 'unrecognized'),
        ('FLAG=1 python tools/study.py configs/studies/nothing.yaml', 'there is no configs/studies/nothing.yaml'),
        ('make demoo', 'no target demoo'),
        ('pip install mmairl', 'no tool of ours'),
    ],
)
def test_a_wrong_command_is_found(command, said):
    with pytest.raises(Wrong, match=said):
        for words in commands(Block('', 'bash', command, None)):
            check(words, set())


def test_blocks_are_found_with_their_marks():
    text = '<!-- not run: why -->\n```bash\na\n```\n\n```python\n# b.py\n```\n\n    python tools/x.py\n'
    found = blocks('', text)
    assert [(b.kind, b.why, b.file) for b in found] == [
        ('bash', 'why', None),
        ('python', None, 'b.py'),
        ('bash', None, None),
    ]


# ---------------------------------------------------------------- words and links

CODE = re.compile(r'(?<!`)`([^`\n]+)`(?!`)')
LINK = re.compile(r'!?\[[^\]]*\]\(([^)\s]+)\)')
OPTION = re.compile(r'^(?:python )?(tools/\w+\.py|tools/\w+\.sh)\s')


def prose(page: str) -> str:
    return FENCE.sub('', (ROOT / page).read_text())


@pytest.mark.parametrize('page', PAGES)
def test_every_path_in_the_text_is_there(page):
    """From the top, or from the page's own folder, as in a project."""
    missing = [path for span in CODE.findall(prose(page)) for path in alternatives(span) if not there(page, path)]
    assert not missing, f'{page}: there is no {missing[0]}'


def there(page: str, path: str) -> bool:
    if not OURS.match(path) or '..' in path or 'NAME' in path or path.startswith('mmairl/.mim/'):
        return True
    return (ROOT / path).exists() or (ROOT / page).parent.joinpath(path).exists()


@pytest.mark.parametrize(
    ('path', 'found'),
    [
        ('configs/byol_r50_200e.py', True),
        ('configs/byol_r50_20e.py', False),
        ('mmairl/nothing.py', False),
        ('mmairl', True),
        ('projects/nothing/', False),
        ('data/imagenet', True),
    ],
)
def test_a_wrong_path_is_found(path, found):
    assert there('README.md', path) is found


@pytest.mark.parametrize('page', PAGES)
def test_every_option_in_the_text_is_one_of_its_tool(page):
    """Spans such as `tools/train.py CONFIG --per-gpu N` leave things out, so only their options are held to the tool."""
    for span in CODE.findall(prose(page)):
        if not (found := OPTION.match(span)):
            continue
        script = {'tools/dist_train.sh': 'tools/train.py', 'tools/slurm_train.sh': 'tools/train.py'}.get(
            found[1], found[1]
        )
        known = options_of(script.replace('dist_evaluate.sh', 'evaluate.py'))
        for option in re.findall(r'(?<!\S)\[?(--[\w-]+)', span):
            if option not in known:
                raise Wrong(f'{page}: `{span}` has {option}, which {script} does not take')


def options_of(script: str) -> set[str]:
    """Every option that the tool declares, in any of its parsers."""
    return set(re.findall(r"'(--[\w-]+)'", (ROOT / script).read_text()))


@pytest.mark.parametrize('page', PAGES)
def test_every_relative_link_and_image_leads_somewhere(page):
    for target in LINK.findall(prose(page)):
        if not (problem := broken(page, target)):
            continue
        raise Wrong(f'{page}: {problem}')


def broken(page: str, target: str) -> str | None:
    if re.match(r'^[a-z]+:', target):
        return None
    path, _, anchor = target.partition('#')
    file = (ROOT / page).parent / path if path else ROOT / page
    if not file.exists():
        return f'{target} is not there'
    if anchor and anchor not in anchors(file):
        return f'{target} has no such heading'
    return None


def anchors(file: Path) -> set[str]:
    titles = re.findall(r'^#+ (.+)$', FENCE.sub('', file.read_text()), re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', title.lower()).strip().replace(' ', '-') for title in titles}


@pytest.mark.parametrize(
    ('target', 'wrong'), [('docs/health.md', False), ('docs/nothing.md', True), ('#nothing', True)]
)
def test_a_dead_link_is_found(target, wrong):
    assert bool(broken('README.md', target)) is wrong


def test_every_page_is_in_the_sites_navigation():
    """Beside the tables that the page of benchmarks links."""
    site = (ROOT / 'mkdocs.yml').read_text()
    missing = [page for page in PAGES if page.startswith('docs/') and f': {page.removeprefix("docs/")}' not in site]
    assert all(page.startswith('docs/benchmarks/') for page in missing), missing


def test_every_entry_of_the_api_is_a_module():
    for name in re.findall(r'^::: (\S+)', (ROOT / 'docs' / 'api.md').read_text(), re.MULTILINE):
        assert importlib.util.find_spec(name), name


# ---------------------------------------------------------------- what is run

# Cheap commands of the pages, with what makes them small; each is looked for in its page, so that it stays what is written.
TINY = (
    'train_dataloader.dataset.count=64 total_batch_size=32 train_cfg.max_epochs=1 default_hooks.checkpoint.interval=1'
)
RUN = [
    ('README.md', 'configs/mocov2plus_r50_200e.py --plan 4 --per-gpu 64', 'python tools/train.py {}', '16|accumulated'),
    ('docs/scale.md', 'python tools/train.py configs/mocov2plus_r50_200e.py --plan 4 --per-gpu 64', '{}', '1024 = 4'),
    ('docs/studies.md', 'python tools/study.py configs/studies/crossover.yaml --scale demo --dry-run', '{}', 'device'),
    ('docs/frameworks.md', 'python tools/factors.py', '{}', 'mocov2plus_lars'),
    (
        'docs/trust.md',
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
        'PYTHONPATH=. python tools/train.py on_stripes.py',
        f'{{}} --cfg-options {TINY} && PYTHONPATH=. python tools/evaluate.py knn on_stripes.py '
        'work_dirs/on_stripes/epoch_1.pth --cfg-options evaluation.train.count=48 evaluation.test.count=24 --k 5',
        'k-NN, k = 5',
    ),
    ('docs/add.md', 'python tools/train.py small_batch.yaml --plan 4 --per-gpu 64', '{}', '512 = 4 GPUs x 64'),
]


@pytest.mark.parametrize(('page', 'written', 'command', 'says'), RUN, ids=lambda value: str(value)[:40])
def test_what_the_page_shows_runs(page, written, command, says, tmp_path):
    text = re.sub(r'\s+', ' ', (ROOT / page).read_text())
    assert written in text, f'{page} has this command no more'
    for name in ('configs', 'tools', 'projects'):
        (tmp_path / name).symlink_to(ROOT / name)
    for block in blocks(page):
        if block.file:
            (tmp_path / block.file).write_text(block.body)
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
        shown = {block.file: block.body for block in blocks(page) if block.file}
        run = ' '.join(written for where, written, *_ in RUN if where == page)
        bodies = ' '.join(body for file, body in shown.items() if file in run)
        for file in shown:
            assert file in run or f"'{Path(file).stem}'" in bodies, f'{page} shows {file}, which no test runs'
