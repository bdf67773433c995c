"""The mathematics of mining positives as pure tensor functions: the paper's, and the calibrated method's."""
