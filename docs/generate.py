"""Write the generated pages of the reference: python docs/generate.py

- `reference/cli.md` is generated from the parsers of the commands.
- In `reference/study_yaml.md`, the keys, types and defaults are generated from the structs of studies. The column of meanings
  is written by hand and stays unchanged.
"""

import argparse
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec

from mmairl.cli.main import COMMANDS, parser_for, summary_of
from mmairl.cli.report import PAGES
from mmairl.study import scale, study

DOCS = Path(__file__).parent
# Some commands have a separate parser for each of these first arguments. The empty tuple means the parser without them.
FORMS = {
    'report': [(), *((page,) for page in PAGES)],
}
STRUCTS = {
    struct.__name__: struct
    for module in (study, scale)
    for struct in vars(module).values()
    if isinstance(struct, type)
    and issubclass(struct, msgspec.Struct)
    and struct.__module__ == module.__name__
}
CLI = """# Command line

Every command is `mmairl COMMAND`, or `python tools/COMMAND.py` in a clone. This page is generated from the commands' parsers
by `python docs/generate.py`. The [exit codes](files_and_exit_codes.md) are the same for all commands.

| command | purpose |
|---|---|
"""


def command_line() -> str:
    """Return reference/cli.md, the page of all commands."""
    lines = [f'| [`{name}`](#mmairl-{name}) | {summary_of(name)} |' for name in COMMANDS]
    forms = [(name, *form) for name in COMMANDS for form in FORMS.get(name, [()])]
    sections = [section(parser_for(*words)) for words in forms]
    return CLI + '\n'.join(lines) + '\n' + ''.join(sections)


def section(parser: argparse.ArgumentParser) -> str:
    """Return the section of a command: its description and the table of its arguments."""
    text = f'\n## {parser.prog}\n\n'
    for paragraph in (parser.description or '').strip().split('\n\n'):
        table = paragraph.startswith('mmairl ') or '   ' in paragraph
        text += f'```text\n{paragraph}\n```\n\n' if table else f'{plain(paragraph)}\n\n'
    if len(parser._actions) == 1:
        return text.rstrip('\n') + '\n'
    text += '| argument | description |\n|---|---|\n'
    for action in parser._actions:
        if action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
            text += f'| {argument(action)} | {plain(action.help or "")} |\n'
    return text


def argument(action: argparse.Action) -> str:
    """Return an argument as users write it, such as `--seed SEED`."""
    name = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    if action.choices:
        name = f'{{{",".join(map(str, action.choices))}}}'
    values = ' '.join(name) if isinstance(name, tuple) else name
    values += {'+': ' ...', '*': ' ...'}.get(str(action.nargs), '')
    if action.nargs == '?' or not action.option_strings:
        values = f'[{values}]' if action.nargs == '?' else values
    return ', '.join(
        f'`{flag} {values}`' if action.nargs != 0 else f'`{flag}`' for flag in action.option_strings
    ) or (f'`{values}`')


def plain(text: str) -> str:
    """Return help text as Markdown."""
    text = ' '.join(text.replace('%%', '%').split())
    return re.sub(r'([<>|*_\[\]])', r'\\\1', text) if '`' not in text else text.replace('|', '\\|')


def study_yaml() -> str:
    """Return reference/study_yaml.md with current tables of keys."""
    page = (DOCS / 'reference' / 'study_yaml.md').read_text()
    return re.sub(r'(<!-- (\w+) -->\n\n)(?:\|.*\n)*', keys, page)


def keys(match: re.Match[str]) -> str:
    """Return the table of a struct's keys. Meanings are copied from the existing table, which `match` holds."""
    meanings = dict(re.findall(r'^\| `(\w+)` \|.*\| ([^|]*) \|$', match[0], re.MULTILINE))
    text = match[1] + '| key | type | default | meaning |\n|---|---|---|---|\n'
    for name, kind, default in fields(STRUCTS[match[2]]):
        if name not in meanings:
            raise SystemExit(
                f"docs/reference/study_yaml.md: the table {match[2]} has no key '{name}'; add a row with its meaning"
            )
        text += f'| `{name}` | {kind} | {default} | {meanings[name]} |\n'
    return text


def fields(struct: type) -> Iterator[tuple[str, str, str]]:
    """Yield the name, type and default of each key of a struct, as text for the table."""
    hints = typing.get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory
        yield field.encode_name, type_words(hints[field.name]), default_words(default)


def type_words(kind: object) -> str:
    """Return the name of a Python type for readers of YAML, such as "list of text"."""
    origin, parts = (
        typing.get_origin(kind),
        [part for part in typing.get_args(kind) if part is not Ellipsis],
    )
    if origin is typing.Literal:
        return ' or '.join(f'`{part}`' for part in parts)
    if origin in (typing.Union, types.UnionType):
        return ' or '.join(
            dict.fromkeys(type_words(part) for part in parts if part is not types.NoneType)
        )
    if origin in (tuple, list):
        return f'list of {type_words(parts[0])}'
    if origin is dict:
        return f'mapping to {type_words(parts[1])}'
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return f'[{kind.__name__}](#{kind.__name__.lower()})'
    names = {str: 'text', int: 'integer', float: 'number', bool: 'boolean', typing.Any: 'any value'}
    return names[kind]


def default_words(default: object) -> str:
    if default is msgspec.NODEFAULT:
        return 'required'
    if (
        default is None
        or default in ('', ())
        or default is dict
        or isinstance(default, msgspec.Struct)
    ):
        return 'none'
    value = list(default) if isinstance(default, tuple) else default
    return f'`{str(value).lower() if isinstance(value, bool) else value}`'


def pages() -> dict[Path, str]:
    """Return the current text of each generated page."""
    return {
        DOCS / 'reference' / 'cli.md': command_line(),
        DOCS / 'reference' / 'study_yaml.md': study_yaml(),
    }


if __name__ == '__main__':
    for path, text in pages().items():
        path.write_text(text)
