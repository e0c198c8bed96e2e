"""Triton device code of bwt, one folder per op. Import it as bwt.kernels."""

if __name__ != "bwt.kernels":
    raise ImportError(
        "this directory holds bwt's Triton kernels and is imported as bwt.kernels; "
        "if another package named kernels was meant, run python outside the checkout or with -P"
    )
