"""Methods: one file each, behind one protocol. A method decides which images of a batch attract and which repel."""

from insclr.methods.method import Method
from insclr.recipe import MethodSettings, load_method


def create_method(settings: MethodSettings) -> Method:
    """The method that a recipe names."""
    method: Method = load_method(settings.name)(settings)
    return method
