"""What the targets that read ONNX share: writing the file, and saying what cannot be written."""
