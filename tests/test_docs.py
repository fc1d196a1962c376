"""The documentation: commands parse, paths and links exist, generated pages are current, and examples run."""

import doctest
import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import torch
import yaml
from packaging.requirements import Requirement

import mmairl
from mmairl.cli.command import parser_of
from mmairl.cli.main import COMMANDS, find

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob('*.md'), *ROOT.glob('docs/**/*.md'), *ROOT.glob('projects/*/README.md')]
FENCE = re.compile(r'(<!-- not run: [^\n]+ -->\n)?^```(\w*)\n(.*?)^```$', re.MULTILINE | re.DOTALL)
OURS = re.compile(r'^(?:configs|projects|tools|tests|mmairl|requirements|docs)/[\w./-]+$')


def prose(page: Path) -> str:
    return FENCE.sub('', page.read_text())


def bash_lines(page: Path) -> list[str]:
    """Return the command lines of a page. Commands of other programs have a comment with the reason above the block."""
    blocks = [
        body for why, kind, body in FENCE.findall(page.read_text()) if kind == 'bash' and not why
    ]
    return [
        line for body in blocks for line in body.replace('\\\n', ' ').splitlines() if line.strip()
    ]


def check_command(line: str) -> None:
    line = re.sub(r' [>|&].*', '', re.sub(r'\{([^{},]*),[^{}]*\}', r'\1', line))
    words = shlex.split(line, comments=True)
    while words and re.match(r'^[A-Z_]+=|python$', words[0]):
        words.pop(0)
    if not words or words[0] == '.':
        return
    tool, *words = words
    command = Path(tool).stem
    if tool == 'make':
        assert re.search(rf'^{words[0]}\b', (ROOT / 'Makefile').read_text(), re.MULTILINE)
    elif tool.endswith('.sh') or tool == 'sbatch':
        assert all(
            (ROOT / word).exists()
            for word in [tool, *words]
            if word.startswith(('tools/', 'configs/'))
        )
    elif tool == '-m':
        assert importlib.util.find_spec(words[0]), words[0]
    else:
        command, words = (words[0], words[1:]) if tool == 'mmairl' else (command, words)
        assert command in COMMANDS, (
            f'{tool} is not a command; write <!-- not run: REASON --> above the block'
        )
        function, program, rest = find([command, *(word.strip('[]') for word in words)])
        parser_of(function, program).parse_args(['1' if word == 'N' else word for word in rest])
        for word in rest:
            assert not OURS.match(word) or (ROOT / word).exists(), word


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_are_accepted(page):
    for line in bash_lines(page):
        try:
            check_command(line)
        except SystemExit:
            pytest.fail(f'the parser rejects: {line}')


def broken_link(page: Path, target: str) -> str | None:
    if re.match(r'^[a-z]+:', target):
        return None
    path, _, anchor = target.partition('#')
    file = page.parent / path if path else page
    if not file.exists():
        return f'{page.name}: {target} does not exist'
    titles = re.findall(r'^#+ (.+)$', prose(file), re.MULTILINE) if anchor else []
    anchors = {re.sub(r'[^\w\- ]', '', title.lower()).strip().replace(' ', '-') for title in titles}
    return (
        f'{page.name}: {target} has no such heading' if anchor and anchor not in anchors else None
    )


def test_links_and_paths_exist():
    pages = [*PAGES, *ROOT.glob('results/**/*.md')]
    links = [
        (page, link)
        for page in pages
        for link in re.findall(r'!?\[[^\]]*\]\(([^)\s]+)\)', prose(page))
    ]
    assert not [message for page, link in links if (message := broken_link(page, link))]
    spans = [
        (page, span)
        for page in PAGES
        for span in re.findall(r'(?<!`)`([^`\n]+)`(?!`)', prose(page))
    ]
    missing = [
        (page.name, span)
        for page, span in spans
        if OURS.match(span)
        and not re.search('[A-Z]{4}', span)
        and page.name != 'CHANGELOG.md'
        and not (ROOT / span).exists()
    ]
    assert not missing


def test_site_lists_all_pages_and_modules():
    pages = {page.relative_to(ROOT / 'docs').as_posix() for page in ROOT.glob('docs/**/*.md')}
    listed = re.findall(r'^ +- .+: (\S+\.md)$', (ROOT / 'mkdocs.yml').read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(pages)
    modules = [
        name for page in PAGES for name in re.findall(r'^::: (\S+)', page.read_text(), re.MULTILINE)
    ]
    assert modules
    assert not [name for name in modules if importlib.util.find_spec(name) is None]


def test_generated_reference_is_current():
    spec = importlib.util.spec_from_file_location('generate', ROOT / 'docs/generate.py')
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for path, text in generate.pages().items():
        assert path.read_text() == text, 'the page is outdated; run python docs/generate.py'


def test_pythons_of_the_workflow_have_tested_versions():
    workflow = yaml.safe_load((ROOT / '.github/workflows/test.yml').read_text())
    lines = (ROOT / 'requirements/constraints.txt').read_text().splitlines()
    pinned = [Requirement(line) for line in lines if line[0] != '#']
    for python in workflow['jobs']['test']['strategy']['matrix']['python']:
        fits = [
            one.name
            for one in pinned
            if one.marker is None or one.marker.evaluate({'python_version': python})
        ]
        assert len(fits) == len(set(fits)) and {'torch', 'numpy', 'scipy', 'matplotlib'} <= set(
            fits
        ), python


def test_citation_states_the_version():
    assert yaml.safe_load((ROOT / 'CITATION.cff').read_text())['version'] == mmairl.__version__


def test_docstring_examples_run():
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for path in sorted((ROOT / 'mmairl').rglob('*.py')):
        if '>>>' in path.read_text():
            name = '.'.join(path.relative_to(ROOT).with_suffix('').parts)
            module = importlib.import_module(name)
            names = dict(torch=torch, mmairl=mmairl)
            assert not doctest.testmod(module, optionflags=flags, extraglobs=names).failed, name
