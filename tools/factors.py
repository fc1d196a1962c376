"""Print the table framework x factor of docs/frameworks.md, read off the configs: python tools/factors.py."""

from pathlib import Path

from mmairl.study.factors import markdown

if __name__ == '__main__':
    print(markdown(Path(__file__).parents[1] / 'configs'), end='')
