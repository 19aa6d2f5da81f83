"""The vLLM plugin: `--load-format ipc_broker` attaches an unmodified vLLM to weights that the broker holds.

    register    the entry point; runs in every vLLM process and never raises
    options     what `--model-loader-extra-config` may say
    key         what decides the bytes of one rank's weights
    loader      the loader class: attach, and what happens when nothing fits
    lookup      which resident model fits, and why none does
    lock        one process at a time loads for a key
    attach      a model of shared weights: skeleton, bind, post-process
    publish     an ordinary load, then export into the broker
    publisher   the short-lived process in which the daemon has a model published
    accounting  the memory query that comes before the load
    baseline    the same for versions of vLLM that do not ask
    startup     what else costs start time
    rebuild     what is left to do around final weights, where vLLM cannot do it
    refuse      what writes weights after the load, and what cannot be rebuilt
    platform    where weights live, and the CPU platform's kernels
    sources     which files a model is made of
    report      one INFO line per rank, counters, and the report that the daemon reads
    serve       the console script ipc-cache-serve
    standby     a server that is started again when it dies, without vLLM's imports

Nothing here is imported before vLLM asks for it, and importing this package imports neither vLLM nor torch.
"""
