"""A worked example, run by `make demo`: exact posteriors, step by step.

A bijection of six symbols is drawn. Each step shows a key and asks for its value, then shows the
value, right or wrong. The table holds the exact posterior of each asked value, in percent.
"""

import torch

from bwt import ops


def table(title: str, keys: torch.Tensor, values: torch.Tensor, result) -> str:
    num_symbols = result.posterior.shape[-1]
    header = "".join(f"{f'p({v})':>7}" for v in range(num_symbols))
    lines = [title, f"  step  asked {header}   entropy  then shown   log2 evidence"]
    for t in range(keys.shape[1]):
        row = "".join(f"{100 * p:7.1f}" for p in result.posterior[0, t].tolist())
        evidence = result.log_evidence[0, t].item() / torch.log(torch.tensor(2.0)).item()
        lines.append(
            f"  {t:4d}  pi({keys[0, t]})  {row}  {result.entropy[0, t]:6.3f} b"
            f"   pi({keys[0, t]}) = {values[0, t]}   {evidence:10.3f}"
        )
    return "\n".join(lines)


def main() -> None:
    keys = torch.tensor([[0, 3, 1, 0, 5, 2]])
    values = torch.tensor([[4, 1, 2, 4, 0, 3]])
    result = ops.bijection_posterior(keys, values, 6)
    print(
        table("Noiseless: a repeated key is known, the rest share equally.", keys, values, result)
    )
    channel = torch.full((6, 6), 0.25 / 5).fill_diagonal_(0.75)
    shown = values.clone()
    shown[0, 2] = 1  # contradicts pi(3) = 1: one of the two must be wrong
    result = ops.bijection_posterior(keys, shown, 6, channel=channel)
    title = "Noisy: one value in four is wrong. pi(3) and pi(1) cannot both be 1."
    print("\n" + table(title, keys, shown, result))


if __name__ == "__main__":
    main()
