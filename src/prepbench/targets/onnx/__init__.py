"""The shared parts of targets that read ONNX: writing the file, and checks for unsupported operators."""
