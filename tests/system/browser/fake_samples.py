"""Samples on which two runs differ: an image with boxes, a text with an untrusted token, audio, and numbers."""

from __future__ import annotations

import math
from typing import Any

import torch

from prepbench.views.sample_parts import picture, wav_address


def part(modality: str, said: str = "", **more: Any) -> dict[str, Any]:
    """An input or output."""
    plain = {"name": "x", "same": "", "other": "", "rest": "", "picture": "", "width": 0, "height": 0, "boxes": []}
    return {**plain, "modality": modality, "said": said, "sound": "", "wave": [], "heard": [], **more}


def both() -> dict[str, Any]:
    """Of two runs of the fake bench, one sample of each modality."""
    image = picture(torch.linspace(0, 1, 3 * 16 * 16).reshape(3, 16, 16), 64)
    seen = {"picture": image, "width": 16, "height": 16}
    box = {"left": 0.2, "top": 0.3, "width": 0.4, "height": 0.5, "text": "class 3 91%"}
    drawn = {**seen, "name": ""}
    found = "1 box of 30% or more"
    moved = {**box, "left": 0.3, "text": "class 5 52%"}
    times = torch.arange(4000) / 8000
    sound = wav_address(torch.sin(2 * math.pi * 220 * times) * 0.5, 8000)
    heights = [0.6 * abs(math.sin(at / 9)) * math.exp(-at / 60) for at in range(120)]
    wave = [value for height in heights for value in (-0.8 * height, height)]
    heard = {"sound": sound, "wave": wave, "heard": [0.25, 0.5]}
    heard["said"] = "float32 of shape (16000,); heard: 0.5 to 1.0 s"
    numbers = [part("numbers", f"0.1, 0.2, {at}, … (40 numbers)") for at in range(3)]
    apart = "deviates from token 3 of 9"
    pairs = [
        ([part("image", "float32 of shape (3, 16, 16)", **seen)],
         [part("image", found, **drawn, boxes=[box])], [part("image", found, **drawn, boxes=[moved])], "3"),
        ([part("text", same="The weather in Paris")],
         [part("text", apart, same="It is ", other="sunny", rest=" today.")],
         [part("text", apart, same="It is ", other="<img src=x onerror=window.harmed=1>")], ""),
        ([part("audio", **heard)], [part("audio", **heard)], [part("audio", **heard)], ""),
        ([numbers[0]], [numbers[1]], [numbers[2]], "7"),
    ]  # fmt: skip
    samples = [
        {"place": f"batch {at}, row 0", "distance": f"{4 + at}.2 dB", "inputs": given, "first": first, "second": second,
         "target": target} for at, (given, first, second, target) in enumerate(pairs)
    ]  # fmt: skip
    caption = "The 4 samples of 64 on which int8 ONNX Runtime 2 is farthest from int8 ONNX Runtime 0, by SQNR."
    return {"first": "int8 ONNX Runtime 0", "second": "int8 ONNX Runtime 2", "caption": caption, "samples": samples}


def none() -> dict[str, Any]:
    """Nothing is compared."""
    return {"first": "", "second": "", "caption": "", "samples": []}
