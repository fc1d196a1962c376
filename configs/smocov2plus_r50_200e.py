# S-MoCo v2+ (Fig. 1d): the teacher also has a predictor, which is an average of the student's, like its other layers.
__method__ = 'smocov2plus'
_base_ = 'mocov2plus_r50_200e.py'
# The reference drops the bias of the last layer of both MLPs; the paper does not mention it.
model = dict(
    teacher_predictor=True, projector=dict(last_bias=False), predictor=dict(last_bias=False)
)
assumptions = dict(
    last_bias='S-MoCo v2+ drops the bias of the last layers, like the release; the paper does not mention it'
)
