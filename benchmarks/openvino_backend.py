"""sentence-transformers' OpenVINO int8 backend in a separate process, for benchmarks.encode --theirs PYTHON.

It needs an older Transformers than raydr, so it runs in a second environment with ``sentence-transformers[openvino]``
and ``datasets``, without raydr. Its arguments are MODEL TEXTS THREADS (a saved model, a JSON list, a number). It
quantises the model on the first 200 texts, as sentence-transformers' documentation does, and prints ``ready``. Then it
encodes all texts once for each line of standard input.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

_NUM_CALIBRATION = 200


def main(model: str, texts_file: str, num_threads: int) -> None:
    # Standard output is for answers alone: other output goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch
    from sentence_transformers import SentenceTransformer, export_static_quantized_openvino_model

    torch.set_num_threads(num_threads)
    texts = json.loads(Path(texts_file).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        rows = "".join(json.dumps({"sentence": text}) + "\n" for text in texts[:_NUM_CALIBRATION])
        data = Path(scratch, "data")
        data.mkdir()
        (data / "train.jsonl").write_text(rows, encoding="utf-8")
        exact = SentenceTransformer(model, backend="openvino", device="cpu")
        folder = f"{scratch}/model"
        exact.save_pretrained(folder)
        export_static_quantized_openvino_model(exact, None, folder, str(data), "default", "train", "sentence")
        settings = {
            "file_name": "openvino/openvino_model_qint8_quantized.xml",
            "ov_config": {"INFERENCE_NUM_THREADS": num_threads},
        }
        theirs = SentenceTransformer(folder, backend="openvino", device="cpu", model_kwargs=settings)
        print("ready", file=answers, flush=True)
        for _ in sys.stdin:
            theirs.encode(texts)
            print("done", file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
