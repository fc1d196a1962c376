"""The list of skipped images at the end of a run."""

from pathlib import Path
from types import SimpleNamespace

import torch
from PIL import Image
from torch.utils.data import Dataset

from mmairl.data.folders import UnlabelledFolder
from mmairl.hooks.unreadable import UnreadableHook


def folder(root: Path) -> UnlabelledFolder:
    root.mkdir(exist_ok=True)
    for number in range(4):
        Image.new('RGB', (4, 4)).save(root / f'{number}.png')
    (root / '1.png').write_bytes(b'')
    (root / '2.png').write_text('no picture')
    return UnlabelledFolder(root)


def said_after(dataset: Dataset) -> list[str]:
    lines = []
    runner = SimpleNamespace(
        train_dataloader=SimpleNamespace(dataset=dataset), logger=SimpleNamespace(warning=lines.append)
    )
    UnreadableHook().after_train(runner)
    return lines


def test_each_file_is_listed_with_its_reason(tmp_path):
    data = folder(tmp_path)
    for index in range(4):
        data[index]
    assert said_after(data) == [
        '2 unreadable images were skipped; mend or remove them:'
        f'\n  {tmp_path}/1.png: is empty\n  {tmp_path}/2.png: is not recognised as an image'
    ]


def test_a_data_set_around_it_does_not_hide_the_reasons(tmp_path):
    data = folder(tmp_path)
    data[1]
    around = SimpleNamespace(dataset=SimpleNamespace(dataset=data), unreadable_files=data.unreadable_files)
    assert '1.png: is empty' in said_after(around)[0]


def test_a_data_set_that_knows_no_reasons_is_listed_and_one_without_files_is_silent(tmp_path):
    own = SimpleNamespace(dataset=object(), unreadable_files=lambda: ['a.jpg'])
    assert said_after(own) == ['1 unreadable images were skipped; mend or remove them:\n  a.jpg: cannot be read']
    assert said_after(SimpleNamespace()) == [] and said_after(folder(tmp_path)) == []


def test_what_any_process_met_is_in_the_list_of_the_first(tmp_path, run_processes):
    data = folder(tmp_path / 'images')
    assert data.unreadable.dtype == torch.uint8
    script = tmp_path / 'two.py'
    script.write_text(
        'import sys\n'
        'from types import SimpleNamespace as N\n'
        'import torch.distributed as dist\n'
        'from mmairl.data.folders import UnlabelledFolder\n'
        'from mmairl.hooks.unreadable import UnreadableHook\n'
        "dist.init_process_group('gloo')\n"
        'data = UnlabelledFolder(sys.argv[1])\n'
        'data[1 + dist.get_rank()]\n'
        'runner = N(train_dataloader=N(dataset=data), logger=N(warning=print))\n'
        'UnreadableHook().after_train(runner)\n'
        'dist.barrier()\n'
        'dist.destroy_process_group()\n'
    )
    said = run_processes(2, script, tmp_path / 'images').stdout
    assert said.count('unreadable images were skipped') == 1 and said.strip().endswith(
        '2 unreadable images were skipped; mend or remove them:'
        f'\n  {tmp_path}/images/1.png: is empty\n  {tmp_path}/images/2.png: is not recognised as an image'
    )
