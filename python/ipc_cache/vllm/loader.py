"""The loader that vLLM selects by `--load-format ipc_broker`: attach, or what `on_miss` says.

A GPU's worker asks one instance for the memory that is held elsewhere, measures the device, and loads with another
instance. Whether this engine attaches is decided in that first call and kept for the second: what was counted is
what is bound. Shared weights live as long as the model; their lease ends with it.
"""

import dataclasses
import logging
import weakref

import torch
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

import ipc_cache
from ipc_cache.vllm import accounting, attach, key, lock, lookup, platform, publish, refuse, reload, sources, startup
from ipc_cache.vllm.options import Options
from ipc_cache.vllm.report import Report, done, failed, supervised

logger = logging.getLogger("vllm.ipc_cache")


class IpcBrokerLoader(BaseModelLoader):
    """Attaches to weights that the broker holds; options are those of `Options`."""

    def __init__(self, load_config) -> None:
        super().__init__(load_config)
        self.options = Options.parse(load_config.model_loader_extra_config)
        startup.freeze()  # what this process has imported since the plugin was registered

    # ---- what vLLM calls

    def download_model(self, model_config) -> None:
        publish.OrdinaryLoader(self.load_config).download_model(model_config)

    def load_weights(self, model: torch.nn.Module, model_config) -> None:
        """Into a model that exists already."""
        self._only_private()
        publish.OrdinaryLoader(self.load_config).load_weights(model, model_config)

    def get_all_weights(self, model_config, model: torch.nn.Module):
        """The checkpoint's tensors by name, for vLLM's `reload_weights`."""
        self._only_private()
        return publish.OrdinaryLoader(self.load_config).get_all_weights(model_config, model)

    def get_external_weight_memory(self, vllm_config) -> int:
        """Bytes on this rank's device that the broker holds and this engine will bind; see accounting."""
        return accounting.decide(self, vllm_config)

    def load_model(self, vllm_config, model_config=None, prefix: str = "") -> torch.nn.Module:
        if model_config is None:
            model_config = vllm_config.model_config
        report = Report("attached", model_config.model, key.role(vllm_config, model_config), platform.rank())
        try:
            model = self._load(vllm_config, model_config, prefix, report)
        except BaseException as error:
            failed(report, error)
            raise
        done(report)
        return model

    # ---- how

    def _only_private(self) -> None:
        if not self.options.private:
            reload.deny()

    def _load(self, vllm_config, model_config, prefix: str, report: Report) -> torch.nn.Module:
        refuse.check_config(vllm_config, self.options.private)
        if self.options.trace_writes:
            ipc_cache.faults.enable()
        decision = accounting.take(report.role, model_config.model) or self.look(vllm_config, model_config, report)
        report.phases = decision.phases
        weights = decision.weights
        if weights is None and self.options.on_miss == "publish":
            weights = self._publish(decision, vllm_config, model_config, prefix, report)
        if weights is None:
            report.how = "loaded"
            logger.warning(
                "ipc_cache: %s %s is loaded ordinarily, not shared: %s", report.role, report.model, decision.miss
            )
            return publish.load(self.load_config, vllm_config, model_config, prefix, report)
        report.key_id, report.sources = weights.manifest.key_id, weights.manifest.source_state
        model = attach.build(vllm_config, model_config, prefix, weights, report)
        # The lease lasts as long as the model; the memory, as long as any tensor of it.
        weakref.finalize(model, weights.close)
        return model

    def look(self, vllm_config, model_config, report: Report) -> lookup.Decision:
        """Attaches, or says why not; raises what `on_miss=fail` makes of a miss."""
        with report.phase("identify"):
            fields, source = self._identify(vllm_config, model_config)
        device = platform.device_name(platform.target_device(vllm_config))
        options = self.options
        if report.role == "draft" and options.on_miss == "fail":
            options = dataclasses.replace(options, on_miss="load")  # a draft decides no token: one warning is enough
        with report.phase("connect"):
            decision = lookup.find(fields, source, device, options)
        if decision.weights is not None:
            report.phases["map"] = decision.weights.map_seconds * 1e3
            report.phases["connect"] -= report.phases["map"]
        decision.phases = report.phases
        return decision

    def _identify(self, vllm_config, model_config):
        def resolve() -> sources.Source:
            return sources.resolve(model_config.model, model_config.revision, self.load_config.download_dir)

        try:
            source = resolve()
        except FileNotFoundError:
            if self.options.on_miss == "fail":
                raise
            self.download_model(model_config)
            source = resolve()
        return key.fields(vllm_config, model_config, source), source

    def _publish(self, decision: lookup.Decision, vllm_config, model_config, prefix: str, report: Report):
        """Loads and publishes, and attaches to that. None if the broker takes nothing: then the engine loads ordinarily,
        unless a daemon wanted nothing but the publication."""
        if isinstance(decision.miss, ipc_cache.NoBroker) and not supervised():
            return None
        with lock.only_one(decision.fields, self.options.wait):
            with report.phase("connect"):
                again = lookup.find(decision.fields, decision.source, decision.device, self.options, again=True)
            if again.weights is not None:
                return again.weights
            options = dataclasses.replace(self.options, replace=self.options.replace or again.stale)
            try:
                publish.publish(
                    self.load_config,
                    vllm_config,
                    model_config,
                    prefix,
                    decision.fields,
                    decision.source,
                    options,
                    report,
                )
            except ipc_cache.Exists:
                logger.info("ipc_cache: somebody else published %s meanwhile", decision.source.identity)
            except (ipc_cache.NoBroker, ipc_cache.NoMemory, ipc_cache.Refused) as error:
                if supervised():
                    raise
                decision.miss = error
                return None
            return lookup.attach_own(decision, self.options)
