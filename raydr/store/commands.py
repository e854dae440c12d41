"""Which command makes what: for errors and reports."""

from __future__ import annotations

#: Who makes what, by its kind.
COMMANDS = {
    "corpus": "raydr prepare",
    "dataset": "raydr prepare (raydr inject-noise where the config has inject_noise)",
    "negatives": "raydr mine",
    "verdicts": "raydr judge",
    "model": "raydr train",
    "warmup": "raydr train",
    "cross_encoder": "raydr train --name ranker",
    "embeddings": "raydr encode",
    "index": "raydr index",
    "run": "raydr search",
    "bm25": "raydr search --model bm25 --split SPLIT",
    "evaluation": "raydr evaluate",
    "audit": "raydr audit",
    "diagnosis": "raydr diagnose",
}
