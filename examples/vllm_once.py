#!/usr/bin/env python3
"""Starts vLLM with the engine arguments given and answers one prompt: examples/vllm_once.py --model DIR ...

The prompt is token ids, so a checkpoint without a tokenizer will do. Prints the seconds until it was ready, and the tokens;
the plugin's own line is in vLLM's log.
"""

import sys
import time


def main():
    from vllm import LLM, SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    options = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(["--skip-tokenizer-init", *sys.argv[1:]])
    given = EngineArgs.from_cli_args(options)
    changed = {
        name: value
        for name, value in vars(given).items()
        if value != getattr(EngineArgs(model=given.model), name, None)
    }
    begin = time.perf_counter()
    llm = LLM(**{**changed, "model": given.model})
    ready = time.perf_counter() - begin
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
    tokens = llm.generate([{"prompt_token_ids": [1, 5, 9, 200]}], params, use_tqdm=False)[0].outputs[0].token_ids
    print(f"ready in {ready:.1f} s, tokens {list(tokens)}", flush=True)


if __name__ == "__main__":
    main()
