"""Images that could not be read are named at the end, not lost in the log."""

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmairl.registry import HOOKS


@HOOKS.register_module()
class UnreadableHook(Hook):
    """Ends the run with the list of image files that were skipped."""

    def after_train(self, runner: Runner) -> None:
        dataset = runner.train_dataloader.dataset
        if not is_main_process() or not hasattr(dataset, 'unreadable_files'):
            return
        skipped = dataset.unreadable_files()
        if skipped:
            names = ''.join(f'\n  {name}' for name in skipped)
            runner.logger.warning(f'{len(skipped)} unreadable images were skipped; mend or remove them:{names}')
