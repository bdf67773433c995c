"""Methods: one file each, behind one protocol. A method says of the pairs of a batch who attracts and who repels."""

from insclr.methods.method import Method
from insclr.recipe import CalibratedSettings, InsclrSettings


def create_method(settings: InsclrSettings | CalibratedSettings) -> Method:
    """The method that a recipe names."""
    if isinstance(settings, InsclrSettings):
        from insclr.methods.insclr import InsclrMethod

        return InsclrMethod(settings)
    from insclr.methods.calibrated import CalibratedMethod

    return CalibratedMethod(settings)
