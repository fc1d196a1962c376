"""Unmodified models of mmpretrain, from the shipped configs at tiny size, are planned, run and compared in one study."""

from study.small_studies import toy_scale, written

from mmairl.study import worker
from mmairl.study.commands import collect_study, prepare_study
from mmairl.study.cost import run_flops
from mmairl.study.runs import lay_out_runs

WIDTHS = dict(in_channels=64, hid_channels=32, out_channels=16)
PREDICTOR = {
    f'model.head.predictor.{name}': width for name, width in (WIDTHS | dict(in_channels=16)).items()
}
TINY = {
    'mmpretrain.NonLinearNeck': WIDTHS,
    'mmpretrain.LatentCrossCorrelationHead': dict(in_channels=16),
    'mmpretrain.MAEViT': dict(
        arch=dict(embed_dims=32, num_layers=2, num_heads=2, feedforward_channels=64),
        img_size=16,
        patch_size=4,
    ),
    'mmpretrain.MAEPretrainDecoder': dict(
        num_patches=16,
        patch_size=4,
        embed_dim=32,
        decoder_embed_dim=32,
        decoder_depth=1,
        decoder_num_heads=2,
    ),
    'mmpretrain.MAEPretrainHead': dict(patch_size=4),
}
DECLARES = [
    'model',
    'optim_wrapper',
    'param_scheduler',
    'train_dataloader',
    'default_hooks',
    'train_cfg',
]
STUDY = dict(
    title='Models of mmpretrain',
    seeds=[0, 1],
    rows=[
        dict(
            name='MoCo v3',
            config='masked/mmpretrain_mocov3_r50_300e.py',
            options=PREDICTOR,
        ),
        dict(
            name='Barlow Twins',
            config='masked/mmpretrain_barlow_r50_1000e.py',
            declares=DECLARES,
        ),
        dict(
            name='MAE',
            config='masked/mae_vit_b16_300e.py',
            declares=DECLARES,
            against='MoCo v3',
        ),
    ],
)


def test_models_of_mmpretrain_are_compared(tmp_path):
    parts = toy_scale()['parts'] | TINY
    study, _, scale, *_ = written(tmp_path, STUDY, epochs=0.003, untrained=[], parts=parts)
    prepared = prepare_study(study, scale, out=tmp_path / 'out')
    # MoCoV3 reads the value of a tensor in each step, so its FLOPs cannot be counted without data.
    assert [bool(run_flops(cfg)) for cfg in prepared.configs.values()] == [
        False,
        True,
        True,
    ]
    runs = lay_out_runs(prepared)
    for run in runs:
        worker.complete_run(run.folder)
    record, page = collect_study(prepared)
    assert len(runs) == 6 and all(run.done for run in runs)
    effects = record['effects']['knn']
    assert [(effect['name'], len(effect['by_seed'])) for effect in effects] == [
        ('Barlow Twins', 2),
        ('MAE', 2),
    ]
    assert 'MAEViT' in prepared.scale[1] and 'ImageNet' not in page.read_text()
