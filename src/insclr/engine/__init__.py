"""Inference engines: the same network by torch, ONNX Runtime or OpenVINO, behind one protocol."""
