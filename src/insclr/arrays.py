"""Types of the arrays that packages exchange."""

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Descriptors = NDArray[np.float32]  # (rows, dim), unit rows
Scores = NDArray[np.float32]
Boxes = NDArray[np.float32]  # (..., 4) left, top, right, bottom
