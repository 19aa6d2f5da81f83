"""The vLLM plugin: `--load-format ipc_broker` attaches an unmodified vLLM to weights that the broker holds.

    register    the entry point; runs in every vLLM process and never raises
    options     what `--model-loader-extra-config` may say
    key         what decides the bytes of one rank's weights
    loader      the loader class: attach, and what happens when nothing fits
    attach      a model of shared weights: skeleton, bind, post-process
    publish     an ordinary load, then export into the broker
    accounting  the memory query that comes before the load
    refuse      what writes weights after the load, and what cannot be rebuilt
    platform    where weights live, and the CPU platform's kernels
    sources     which files a model is made of
    report      one INFO line per rank, counters, and the report that the daemon reads
    serve       the console script ipc-cache-serve

Nothing here is imported before vLLM asks for it, and importing this package imports neither vLLM nor torch.
"""
