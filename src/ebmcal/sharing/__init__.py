"""A model handed on: as an ONNX file that runs without torch, to the hub."""
