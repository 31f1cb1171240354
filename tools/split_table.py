"""Write docs/split-table.md: networks of torchvision and timm, each cut at its last linear layer.

    python tools/split_table.py

Every line is made anew: the network is built with random weights for pictures of the given side, cut, and looked at.
"""

from __future__ import annotations

import time
from pathlib import Path

from protonorm.models import libraries
from protonorm.models.split import Facts, examine

PAGE = Path(__file__).resolve().parents[1] / "docs" / "split-table.md"
SIDE = 32  # pixels, unless a network needs more
SIDES = {"torchvision:alexnet": 64, "torchvision:inception_v3": 80}

TORCHVISION = """
    alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 mnasnet0_5
    mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 resnet50
    resnext50_32x4d shufflenet_v2_x0_5 squeezenet1_1 swin_t swin_v2_t vit_b_16
"""
TIMM = """
    botnet26t_256 caformer_s18 cait_xxs24_224 coat_tiny coatnet_nano_rw_224 convit_tiny convnext_atto
    cspresnet50 davit_tiny deit_tiny_patch16_224 deit_tiny_distilled_patch16_224@head dla34 dpn48b eca_nfnet_l0
    edgenext_xx_small efficientformerv2_s0@head efficientvit_b0 eva02_tiny_patch14_224 fasternet_t0 fastvit_t8
    fbnetv3_b focalnet_tiny_srf gcvit_xxtiny ghostnet_100 gmlp_ti16_224 hardcorenas_a hgnetv2_b0 hiera_tiny_224
    hrnet_w18_small inception_next_atto lcnet_050 levit_128@head.linear mambaout_femto mixer_s16_224
    mobilenetv4_conv_small mobilevit_xxs mvitv2_tiny nest_tiny pit_ti_224 poolformer_s12 pvt_v2_b0 rdnet_tiny
    regnetx_002 repghostnet_050 repvgg_a0 repvit_m0_9@head.head.l res2net50d resmlp_12_224 resnest14d
    resnetv2_18 rexnet_100 selecsls42 skresnet18 starnet_s1 swin_tiny_patch4_window7_224 tf_efficientnet_lite0
    tiny_vit_5m_224 tinynet_e twins_svt_small visformer_tiny vit_tiny_patch16_224 vovnet39a xcit_nano_12_p8_224
"""
NAMES = [f"torchvision:{name}" for name in TORCHVISION.split()] + [f"timm:{name}" for name in TIMM.split()]

HEAD = """# Networks that were cut

{count} networks of torchvision {torchvision} and timm {timm}, with random weights, as `pn.split` cuts them; made by
`python tools/split_table.py`. Write `models=torchvision:NAME` or `models=timm:NAME`, and `NAME@LAYER` where a network
has several layers that may decide. `protonorm inspect` says the same of any other one.

*Side*: pixels of the pictures. *Width*: features at the cut, before they become d. *MACs*: multiplications and
additions of one picture's forward pass in convolutions and matrix products, in millions. *Negative*: share of features
below zero and the smallest of them, as seen with random weights on random pictures.

| network | side | cut at | width | parameters of the base | MACs | negative |
|---|---|---|---|---|---|---|
"""


def row(name: str) -> str:
    """Cut a network and describe it in a line of the table."""
    side = SIDES.get(name, SIDE)
    return line(examine(name, (3, side, side), 512, 10), side)


def line(facts: Facts, side: int) -> str:
    """Write a line of the table."""
    negative = f"{100 * facts.negative:.0f} %, {facts.smallest:.1g}" if facts.negative else "none"
    cells = [f"`{facts.network}`", str(side), f"`{facts.layer}`", str(facts.width), f"{facts.base:,}"]
    return f"| {' | '.join([*cells, f'{facts.macs / 1e6:.1f}', negative.replace('-', '−')])} |"


def main() -> None:
    """Write the page, and say how long it took."""
    start = time.perf_counter()
    rows = [row(name) for name in NAMES]
    modules = {"torchvision": libraries.torchvision(), "timm": libraries.timm()}
    versions = {name: module.__version__.split("+")[0] for name, module in modules.items()}
    PAGE.write_text(HEAD.format(count=len(rows), **versions) + "\n".join(rows) + "\n", encoding="utf-8")
    print(f"{PAGE.name}: {len(rows)} networks in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
