"""`bwt ablate`"""

import argparse
import json

from bwt.cli.commands.geometry import add_arguments as add_arguments
from bwt.geometry import ablate
from bwt.records.estimates import Estimate
from bwt.records.geometry import Ablation, Skipped
from bwt.report import diagnostics


def run(arguments: argparse.Namespace) -> None:
    found = ablate(
        arguments.path,
        sequences=arguments.sequences,
        seed=arguments.seed,
        device=arguments.device,
        quiet=arguments.json,
    )
    # The sections of this command; those of `bwt geometry` are printed by it.
    ablation, splice = found.ablation, found.splice
    assert ablation is not None and splice is not None
    if arguments.json:
        print(json.dumps({**ablation.to_json(), "splice": splice.to_json()}))
        return
    if isinstance(ablation, Skipped):
        print(f"Not measured: {ablation.reason}.")
        return
    print(table(ablation))
    print("\n".join(diagnostics.splice.SHOWN.lines(splice).values()))


def table(ablation: Ablation) -> str:
    """What each part is worth: bits of KL added without it."""

    def bits(x: Estimate) -> str:
        return f"{x.mean:10.4f} ±{x.error:.0e}"

    intact = ablation.kl
    lines = [
        f"intact: {intact.mean:.4g} ± {intact.error:.1g} bits from exact Bayes (KL)",
        f"{'taken out':<18}{'KL added, zero':>17}{'KL added, mean':>17}   entropy error, zero",
    ]
    for zero, mean in zip(ablation.parts[::2], ablation.parts[1::2], strict=True):
        name = f"layer {zero.layer} {zero.part}"
        name += "" if zero.head is None else f" {zero.head}"
        lines.append(
            f"{name:<18}{bits(zero.kl_added):>17}{bits(mean.kl_added):>17}   "
            f"x{zero.entropy_mae_factor:.3g}"
        )
    if ablation.keys:
        lines.append(f"{'keys':<22}{'KL added':>17}")
    for edit in ablation.keys:
        place = "all layers" if edit.layer is None else f"layer {edit.layer}"
        lines.append(f"{f'{place} {edit.edit}':<22}{bits(edit.kl_added):>17}")
    return "\n".join(lines)
