"""Writes the fuzzers' first inputs: seeds.py FOLDER makes FOLDER/manifest and FOLDER/safetensors."""
import base64
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "system"))
from manifest import Draft, block_hashes  # noqa: E402


def manifests():
    draft = Draft({"device": "host", "model": "/m"}, "seed")
    yield Draft({"model": "/empty"}).build()
    draft.segment(5 << 20, block_hashes(bytes(5 << 20))).segment(4096)
    draft.tensor("a", "F32", (4, 8), 0, 0).tensor("b", "BF16", (3,), 0, 256).tensor("b2", "BF16", (3,), 0, 256, 4, 1)
    draft.tensor("c", "F4", (4, 6), 1, 0).tensor("empty", "U8", (0,), 1, 512)
    draft.source("model.safetensors", 4711, bytes(16), inode=7, mtime_ns=1).attribute("x", "text/plain", b"content")
    yield draft.build()
    kept = Draft({"device": "GPU-0", "model": "/kept"}, "kept")
    for i, size in enumerate((64, 128)):
        kept.segment(2 << 20, device="GPU-0", handle_kind=2, handle=bytes([i + 1]) * size)
    yield kept.tensor("a", "F32", (4, 8), 0, 0).tensor("b", "U8", (9,), 1, 256).build()


def main():
    folder = pathlib.Path(sys.argv[1])
    for part in "manifest", "safetensors":
        (folder / part).mkdir(parents=True, exist_ok=True)
    for i, content in enumerate(manifests()):
        (folder / "manifest" / f"seed-{i}").write_bytes(content)
    cases = json.loads((HERE.parent / "data" / "safetensors-cases" / "cases.json").read_text())
    for name, content in cases.items():
        (folder / "safetensors" / name).write_bytes(base64.b64decode(content))


main()
