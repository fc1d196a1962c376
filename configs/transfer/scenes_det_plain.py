# Detection on synthetic scenes without new normalization: neck and head have none, as in the paper's C4 detectors, which suffer
# from the long weights that LARS leaves when SGD fine-tunes. scenes_det.py adds batch norm to the neck, as FPN does there.
_base_ = 'scenes_det.py'
model = dict(neck=dict(norm_cfg=None))
