"""Run all tests, including slow ones and those of projects, in portions that can be resumed.

A portion is a list of test files that takes about five minutes. The files of each passed portion are recorded in
`build/test-all/HASH.json`, where HASH is a hash of all files of the repository. After an interruption or a failure,
the same command runs only the test files that have not passed with the same hash. Durations of the last run decide how
files are grouped.

    python -m harness.portions [--list] [PYTEST OPTIONS]
"""

import hashlib
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
STATE = ROOT / 'build' / 'test-all'
# Each portion should take about this number of seconds, with WORKERS workers.
PORTION = 300
UNKNOWN = 20  # A file without a measured duration is assumed to take this number of seconds
LIMIT = 900  # A single test is stopped after this number of seconds
WORKERS = 2
PASSED = 0  # These are exit statuses of pytest
NO_TESTS = 5


def files_of_tests() -> list[str]:
    """Return all test files, relative to the root: first those of the package, then those of projects."""
    paths = [*sorted(ROOT.glob('tests/**/test_*.py')), *sorted(ROOT.glob('projects/*/tests/**/test_*.py'))]
    return [str(path.relative_to(ROOT)) for path in paths]


def tree_hash() -> str:
    """Return a hash of all files that git tracks or would add, in their current state."""
    listed = subprocess.run(
        ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    digest = hashlib.sha256(sys.version.encode())
    for name in sorted(set(listed.stdout.split(b'\0'))):
        path = ROOT / os.fsdecode(name)
        if path.is_file():
            digest.update(name)
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def portions_of(files: Iterable[str], seconds: dict[str, float]) -> list[list[str]]:
    """Group files in their order. A group ends before its time exceeds `PORTION` seconds for each worker."""
    groups = []
    total = float('inf')
    for file in files:
        needed = seconds.get(file, UNKNOWN)
        if total + needed > WORKERS * PORTION:
            groups.append([])
            total = 0.0
        groups[-1].append(file)
        total += needed
    return groups


def durations(report: Path) -> dict[str, float]:
    """Return the duration of each test file in a JUnit report, in seconds."""
    seconds = Counter()
    for case in ElementTree.parse(report).iter('testcase'):
        file = case.get('file')
        if file:
            seconds[file] += float(case.get('time', 0))
    return dict(seconds)


def run_portion(files: list[str], options: list[str], report: Path) -> int:
    command = [sys.executable, '-m', 'pytest', '-m', '', '-n', str(WORKERS), '--dist', 'loadfile']
    command += ['--max-worker-restart', '0', '--timeout', str(LIMIT), '-o', 'junit_family=xunit1']
    return subprocess.run([*command, '--junit-xml', str(report), *options, *files], cwd=ROOT).returncode


def read_json(path: Path) -> dict:
    return json.loads(path.read_text()) if path.is_file() else {}


def main(arguments: list[str]) -> int:
    STATE.mkdir(parents=True, exist_ok=True)
    passed_file = STATE / f'{tree_hash()}.json'
    passed = read_json(passed_file)
    seconds = read_json(STATE / 'durations.json')
    todo = [file for file in files_of_tests() if file not in passed]
    portions = portions_of(todo, seconds)
    print(f'{len(passed)} test files have passed for these sources; {len(todo)} to run in {len(portions)} portions')
    if arguments == ['--list']:
        for number, files in enumerate(portions, 1):
            print(f'{number}: {" ".join(files)}')
        return 0
    failed = []
    for number, files in enumerate(portions, 1):
        start = time.monotonic()
        report = STATE / 'report.xml'
        status = run_portion(files, arguments, report)
        took = time.monotonic() - start
        if report.is_file():
            seconds.update(durations(report))
            (STATE / 'durations.json').write_text(json.dumps(seconds, indent=1))
        if status in (PASSED, NO_TESTS):
            passed.update(dict.fromkeys(files, took / len(files)))
            passed_file.write_text(json.dumps(passed, indent=1))
        else:
            failed.append(number)
        outcome = 'passed' if number not in failed else f'failed with status {status}'
        print(f'portion {number} of {len(portions)} {outcome} in {took:.0f} s', flush=True)
    total = sum(passed.values())
    print(f'{len(passed)} of {len(files_of_tests())} test files have passed; they took {total / 60:.0f} minutes')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
