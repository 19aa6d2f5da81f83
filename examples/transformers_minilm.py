"""Sentence embeddings by transformers, from attached weights.

ipc-cached &
python examples/transformers_minilm.py $(tools/fetch-model)
"""

import argparse
import sys
import time

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer

import ipc_cache
from ipc_cache import engine

SENTENCES = [
    "How do I keep model weights in memory between restarts?",
    "The weights outlive the process that loaded them.",
    "Bananas are rich in potassium.",
]


def embed(model, tokenizer, sentences):
    """Mean of the last hidden states, of length 1."""
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the model's folder")
    folder = parser.parse_args().model
    try:
        ipc_cache.load(folder)
    except ipc_cache.NoBroker as error:
        sys.exit(str(error))
    tokenizer = AutoTokenizer.from_pretrained(folder)

    begin = time.perf_counter()
    with engine.skeleton():  # parameters without memory; buffers as the model's own code computes them
        model = AutoModel.from_config(AutoConfig.from_pretrained(folder)).eval()
    built = time.perf_counter()
    weights = ipc_cache.attach_module(model, folder)
    print(f"built in {(built - begin) * 1e3:.0f} ms, weights attached in {(time.perf_counter() - built) * 1e3:.1f} ms")

    vectors = embed(model, tokenizer, SENTENCES)
    for i, sentence in enumerate(SENTENCES):
        print(f"{vectors[0] @ vectors[i]:+.3f}  {sentence}")

    usual = AutoModel.from_pretrained(folder).eval()
    print("the same as from_pretrained():", torch.equal(vectors, embed(usual, tokenizer, SENTENCES)))
    weights.close()


if __name__ == "__main__":
    main()
