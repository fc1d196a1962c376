"""The command `mmairl demo`."""

from mmairl.cli.command import Options, Seed


def demo(
    *,
    config: str = 'mmairl::demo/mocov2plus_shapes.py',
    seed: Seed = 0,
    work_dir: str = 'work_dirs/demo',
    cfg_options: Options = {},  # noqa: B006  it is never changed
) -> None:
    """Pre-train a small model and write a page about it, in minutes on a CPU

    Args:
        config: train with this config
        seed: set the seed (default: 0)
        work_dir: write here
        cfg_options: override config keys, such as optim_wrapper.optimizer.lr=0.1 (default: none)
    """
    # These imports come after the parsing of arguments, because importing torch and OpenMMLab takes seconds.
    from mmairl.config import load_config
    from mmairl.engine.run import register
    from mmairl.evaluation.protocol import default_device
    from mmairl.report.demo_page import run_demo

    register()
    cfg = load_config(config, cfg_options)
    cfg.work_dir = work_dir
    page = run_demo(cfg, seed, default_device())
    print(f'the page: {page.resolve()}')
