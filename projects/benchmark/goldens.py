"""Compare the results of two commits, bit for bit: python -m projects.benchmark.goldens --base REV

A probe is a short program whose result must not change, such as a training run of 50 steps. All probes (golden_probes.py)
run in a copy of REV and in a copy of the working tree, on this machine and with this Python. The command prints one line for
each probe, and exits with 1 if a result differs in a way that ALLOWED does not list. Results are stored under --work by the
content of the tree, so the probes of REV run only once, and an interrupted command resumes.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROBES = (HERE / 'golden_probes.py').read_text()
VERSION = hashlib.sha256(PROBES.encode()).hexdigest()[:8]
PARTS = (
    'train_one',
    'train_two',
    'resume',
    'formats',
    'evaluation',
    'study',
    'tools',
    'wheel',
    'fixtures',
)
LIMIT = 3600  # maximum seconds for one group of probes in one tree
MISSING = 'nothing'  # placeholder for a value that exists in only one tree
# Expected differences: patterns (fnmatch) of the probe and of the key in its result, and the reason.
ALLOWED = (
    ('tools/help_*', 'help', 'help texts are rewritten; only the exit code counts'),
    ('tools/*', 'said', 'error messages are rewritten; only the exit code counts'),
    ('wheel/names', '*', 'files move, and projects leave the wheel'),
    ('evaluation/*', 'identity.*', 'a result identity may cover more inputs than before'),
    (
        'fixtures/evaluation',
        'again.identity.*',
        'a result identity may cover more inputs than before',
    ),
    (
        'study/*',
        'record.rows.*.runs.*.identities.*',
        'a result identity may cover more inputs than before',
    ),
    (
        'fixtures/study',
        'record.rows.*.runs.*.identities.*',
        'a result identity may cover more inputs than before',
    ),
    ('study/*', 'files.*', 'pages may gain or lose files'),
    ('formats/*', 'source', 'names of formats are only for messages and may change'),
    ('formats/*', '*.source', 'names of formats are only for messages and may change'),
)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--base', required=True, metavar='REV', help='compare the working tree with this commit'
    )
    parser.add_argument(
        '--part',
        nargs='+',
        choices=PARTS,
        default=PARTS,
        help='run only these groups of probes (default: all)',
    )
    parser.add_argument(
        '--steps', type=int, default=50, help='train each config for this many steps (default: 50)'
    )
    parser.add_argument(
        '--work',
        type=Path,
        help='write trees and results to this folder (default: a fixed temporary folder)',
    )
    parser.add_argument('--quiet', action='store_true', help='print only probes that differ')
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    work = (args.work or Path(tempfile.gettempdir()) / 'mmairl_goldens').absolute()
    base = git('rev-parse', f'{args.base}^{{tree}}')
    new = working_tree()
    failed = differing = 0
    for part in args.part:
        folders = []
        for tree in dict.fromkeys((base, new)):
            out = results(work, tree, args.steps)
            if part == 'fixtures':
                restore_fixtures(work, base, args.steps)
                out /= f'fixtures_of_{base[:12]}'
            run_part(work, tree, part, args.steps, out)
            folders.append(out / part)
        if len(folders) == 1:
            print(f'{part}: both trees are the same; nothing to compare', flush=True)
            continue
        differs, fails = report(*folders, args.quiet)
        differing += differs
        failed += fails
    print(f'{differing} probes differ, {failed} failed')
    return int(bool(differing or failed))


def git(*arguments: str, **options: Any) -> str:
    return subprocess.run(
        ['git', *arguments], cwd=ROOT, check=True, capture_output=True, text=True, **options
    ).stdout.strip()


def working_tree() -> str:
    """Return the git tree of the current files, committed or not, without changing the index."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, 'GIT_INDEX_FILE': f'{folder}/index'}
        git('read-tree', 'HEAD', env=env)
        git('add', '--all', env=env)
        return git('write-tree', env=env)


def checkout(work: Path, tree: str) -> Path:
    """Write the files of a git tree below `work`, without adding a worktree to the repository."""
    folder = work / 'trees' / tree[:12]
    if not folder.is_dir():
        part = folder.with_suffix('.part')
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        archive = subprocess.Popen(['git', 'archive', tree], cwd=ROOT, stdout=subprocess.PIPE)
        subprocess.run(['tar', '-x', '-C', part], stdin=archive.stdout, check=True)
        if archive.wait():
            raise SystemExit(f'git archive {tree} failed')
        part.rename(folder)
    return folder


def results(work: Path, tree: str, steps: int) -> Path:
    """Return the folder for the results of a tree. Its name depends on golden_probes.py, so changed probes run again."""
    return work / 'results' / f'{tree[:12]}_{VERSION}_{steps}'


def run_probes(work: Path, tree: str, part: str, steps: int, out: Path) -> None:
    """Run a copy of golden_probes.py in a tree. The scratch folder has the same path for all trees."""
    folder = checkout(work, tree)
    (work / 'golden_probes.py').write_text(PROBES)
    (work / 'scratch').mkdir(exist_ok=True)
    env = {
        **os.environ,
        'PYTHONPATH': str(folder),
        'OMP_NUM_THREADS': '1',
        'GOLDENS_OUT': str(out),
        'GOLDENS_SCRATCH': str(work / 'scratch'),
        'GOLDENS_STEPS': str(steps),
    }
    log = work / f'{part}_{tree[:12]}.log'
    with log.open('w') as file:
        process = subprocess.Popen(
            [sys.executable, work / 'golden_probes.py', part],
            cwd=folder,
            env=env,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            code = f'a timeout after {LIMIT} s'
        finally:
            with suppress(ProcessLookupError):  # kill processes that a failed part has left behind
                os.killpg(process.pid, signal.SIGKILL)
    if code:
        print(f'{part} in {tree[:12]} ended with {code}; see {log}', flush=True)


def run_part(work: Path, tree: str, part: str, steps: int, out: Path) -> None:
    began = time.perf_counter()
    for old in (out / part).glob('*.failed'):
        old.unlink()
    run_probes(work, tree, part, steps, out)
    print(f'{part} in {tree[:12]}: {time.perf_counter() - began:.0f} s', flush=True)


def restore_fixtures(work: Path, base: str, steps: int) -> None:
    """Restore the fixtures: files, such as interrupted runs, that the base commit writes and both trees read.

    The base commit writes the fixtures only once. They are restored in the folder in which the base commit wrote them.
    """
    stored = results(work, base, steps) / 'written_fixtures'
    scratch = work / 'scratch' / 'fixtures'
    if not stored.is_dir():
        run_probes(work, base, 'write_fixtures', steps, stored.parent)
        if not (scratch / 'complete').is_file():
            raise SystemExit(
                f'{base[:12]} could not write the fixtures; see write_fixtures_{base[:12]}.log in {work}'
            )
        stored.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(scratch, stored)
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(
        stored, scratch
    )  # keeps modification times, which are part of the identities of results


def report(base: Path, new: Path, quiet: bool) -> tuple[int, int]:
    """Print one line for each probe, and return how many probes differ and how many could not run."""
    differing = failed = 0
    names = sorted({path.stem for folder in (base, new) for path in folder.glob('*.*')})
    if not names:
        print(f'{base.name}: no results')
        return 0, 1
    for name in names:
        probe = f'{base.name}/{name}'
        sides = [folder / f'{name}.json' for folder in (base, new)]
        missing = [
            side for side, path in zip(('the base', 'the new tree'), sides) if not path.is_file()
        ]
        if missing:
            failed += 1
            print(
                f'{probe}: FAILED in {" and ".join(missing)}: {reason(new, name) or reason(base, name)}'
            )
            continue
        before, after = (dict(flatten(json.loads(path.read_text())['value'])) for path in sides)
        line, is_different = compare(probe, before, after)
        differing += is_different
        if is_different or not quiet:
            print(line)
    return differing, failed


def compare(probe: str, before: dict[str, Any], after: dict[str, Any]) -> tuple[str, bool]:
    """Return the line for a probe, and whether it differs in a way that ALLOWED does not list."""
    unexpected = []
    reasons = []
    for key in sorted({*before, *after}):
        if before.get(key, MISSING) == after.get(key, MISSING):
            continue
        words = allowed(probe, key)
        if not words:
            unexpected.append(key)
        elif words not in reasons:
            reasons.append(words)
    if unexpected:
        first = unexpected[0]
        values = f'{shorten(before.get(first, MISSING))} -> {shorten(after.get(first, MISSING))}'
        return f'{probe}: DIFFERS in {len(unexpected)} values, first {first}: {values}', True
    if reasons:
        return f'{probe}: same, except for allowed differences: {"; ".join(reasons)}', False
    return f'{probe}: same ({len(before)} values)', False


def reason(folder: Path, name: str) -> str:
    path = folder / f'{name}.failed'
    return json.loads(path.read_text())['error'].strip().splitlines()[-1] if path.is_file() else ''


def allowed(probe: str, key: str) -> str:
    return next(
        (
            words
            for pattern, keys, words in ALLOWED
            if fnmatch(probe, pattern) and fnmatch(key, keys)
        ),
        '',
    )


def flatten(value: Any, prefix: str = '') -> Iterator[tuple[str, Any]]:
    """Yield each plain value inside nested dictionaries and lists, with its dotted key."""
    if isinstance(value, dict) and value:
        pairs = value.items()
    elif isinstance(value, list) and value:
        pairs = enumerate(value)
    else:
        yield prefix, value
        return
    for key, inner in pairs:
        yield from flatten(inner, f'{prefix}.{key}' if prefix else str(key))


def shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f'{text[:77]}...'


if __name__ == '__main__':
    sys.exit(main())
