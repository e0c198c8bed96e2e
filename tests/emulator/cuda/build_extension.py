"""Runs setup.py as on a machine with the CUDA build of torch, for bwt._C_cuda alone.

python tests/emulator/cuda/build_extension.py CUDA_RELEASE [options of build_ext]
"""

import runpy
import sys
from unittest import mock

import setuptools
import torch


def main(release, *options):
    torch.version.cuda = release
    setup = setuptools.setup

    def setup_cuda(*, ext_modules, **others):
        wanted = [module for module in ext_modules if module.name == "bwt._C_cuda"]
        return setup(ext_modules=wanted, **others)

    sys.argv = ["setup.py", "build_ext", *options]
    with mock.patch.object(setuptools, "setup", setup_cuda):
        runpy.run_path("setup.py", run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
