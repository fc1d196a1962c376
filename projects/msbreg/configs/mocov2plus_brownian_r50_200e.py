# MoCo v2+ with the Brownian term, as an example of a regularizer added to another method.
_base_ = '../../../configs/mocov2plus_r50_200e.py'
custom_imports = dict(imports=['projects.msbreg.msbreg'], allow_failed_imports=False)
model = dict(
    head=dict(
        _delete_=True,
        type='RegularisedHead',
        base=dict(type='ContrastiveHead', temperature=0.2),
        terms=[dict(type='BrownianTerm', weight=0.5)],
    )
)
