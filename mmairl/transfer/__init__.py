"""The parts for the transfer tables that mmdet and mmseg lack; each module is imported by the configs that name it.

Both import all of mmcv's ops at once, so what stands in for ops that are not installed has to be there before.
"""

from mmairl.transfer.ops import use_torchvision_ops

use_torchvision_ops()
