"""The real worker, loading what ``ExportedModel.save`` of the tests wrote: an exported program."""

import os
import sys

import torch

import prepbench.package
from prepbench.measure import worker


def load(folder, *, allow_code):
    os.system("echo a library that prints from C while it loads")
    return torch.export.load(folder / "model.pt2").module()


prepbench.package.load_compiled = load
worker.main(sys.argv[1:])
