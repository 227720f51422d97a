"""The ONNX file that the ONNX-based targets share: export, finishing touches, and what ONNX has no place for."""
