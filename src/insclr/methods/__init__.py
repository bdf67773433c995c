"""Methods: one file each, behind one protocol. A method says of the pairs of a batch who attracts and who repels."""

import importlib

from insclr.methods.method import Method
from insclr.recipe import MethodSettings

# Imported when they are asked for: some need packages of their own.
_CLASSES = {
    "insclr": "insclr.InsclrMethod",
    "calibrated": "calibrated.CalibratedMethod",
    "simclr": "simclr.Simclr",
    "moco-v2": "moco.Moco",
    "byol": "byol.Byol",
    "swav": "swav.Swav",
    "deepcluster": "deepcluster.DeepCluster",
    "pcl": "pcl.Pcl",
    "cluster-contrast": "cluster_contrast.ClusterContrast",
    "scan-nn": "scan_nn.ScanNn",
    "manifold-mining": "manifold_mining.ManifoldMining",
    "arcface": "arcface.Arcface",
    "gem-ap": "gem_ap.GemAp",
    "oracle": "oracle.Oracle",
}


def create_method(settings: MethodSettings) -> Method:
    """The method that a recipe names."""
    module, kind = _CLASSES[settings.name].split(".")
    made: Method = getattr(importlib.import_module(f"{__name__}.{module}"), kind)(settings)
    return made
