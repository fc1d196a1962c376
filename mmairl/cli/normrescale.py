"""The command `mmairl normrescale`."""

from mmairl.cli.command import AboveZero, Part


def normrescale(
    lars: str,
    out: str,
    *,
    anchor: str | None = None,
    constant: AboveZero | None = None,
    part: Part = 'student',
) -> None:
    """Rescale a LARS-trained backbone to the weight norms of another checkpoint

    mmairl normrescale LARS_CKPT OUT --anchor CKPT applies Eq. 3 of Huang et al. 2022. The anchor is a checkpoint of the same
    network that was trained by SGD, such as torchvision:resnet50.

    Args:
        lars: rescale this checkpoint in any known format
        out: write the rescaled checkpoint to this file
        anchor: rescale to the norms of this checkpoint; required without --constant (default: none)
        constant: multiply all weights by this factor instead; Huang et al. 2022 use 0.1 (default: none)
        part: choose the network in the checkpoint
    """
    # These imports come after the parsing of arguments, because importing torch and OpenMMLab takes seconds.
    from mmairl.checkpoints.normrescale import rescale_checkpoint
    from mmairl.report.table import Table

    rows = rescale_checkpoint(lars, out, anchor, constant, part)
    cells = [[row.name, row.norm, row.why or row.anchor] for row in rows]
    print(Table(['tensor', 'before', 'after'], cells, digits=4).text('norms'))
    print(f'{out} holds {sum(not row.why for row in rows)} rescaled tensors')
