"""The loaders for vLLM and SGLang, on stand-ins with the names that they import: the engines themselves need a GPU, or wheels that the index does not have."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import sys
import types

import numpy as np
import pytest
from test_iter import LARGE, large, server  # noqa: F401
from test_load import no_proxy  # noqa: F401

import devmem_tcp.sglang
import devmem_tcp.vllm
from devmem_tcp import _engines


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="SKIP torch is not installed: pip install torch")


class Model:
    """A model that takes its weights as those of vLLM and SGLang do: from an iterator, each before the next."""

    def __init__(self, torch, names=LARGE):
        self.parameters = {name: torch.zeros(LARGE[name].shape, dtype=getattr(torch, LARGE[name].dtype.name)) for name in names}

    def named_parameters(self):
        return iter(self.parameters.items())

    def load_weights(self, weights):
        loaded = set()
        for name, weight in weights:
            if name in self.parameters:
                self.parameters[name].copy_(weight)
                loaded.add(name)
        return loaded

    def eval(self):
        return self

    def check(self):
        for name, parameter in self.parameters.items():
            assert np.array_equal(parameter.numpy(), LARGE[name]), name


def module(monkeypatch, name, **names):
    """Adds a module, and those above it."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        above = ".".join(parts[:end])
        if above not in sys.modules:
            monkeypatch.setitem(sys.modules, above, types.ModuleType(above))
    made = types.ModuleType(name)
    vars(made).update(names)
    monkeypatch.setitem(sys.modules, name, made)
    return made


@pytest.fixture
def vllm(monkeypatch):
    """vLLM's registry of load formats."""
    formats = {}

    def register_model_loader(load_format):
        def register(loader):
            assert issubclass(loader, BaseModelLoader)
            formats[load_format] = loader
            return loader

        return register

    class BaseModelLoader:
        def __init__(self, load_config):
            self.load_config = load_config

    module(monkeypatch, "vllm.model_executor.model_loader", register_model_loader=register_model_loader)
    module(monkeypatch, "vllm.model_executor.model_loader.base_loader", BaseModelLoader=BaseModelLoader)
    monkeypatch.setattr(devmem_tcp.vllm, "_is_registered", False)
    return formats


def entry_point(group):
    [found] = [one for one in importlib.metadata.entry_points(group=group) if one.name == "devmem"]
    return found.load()


def config(**options):
    return types.SimpleNamespace(model_loader_extra_config=options)


def test_vllm_loads_a_model_through_its_entry_point(vllm, torch, large):  # noqa: F811
    register = entry_point("vllm.general_plugins")
    register()
    loader_class = vllm.pop("devmem")
    # In the processes that it was forked from, too.
    register()
    assert not vllm
    loader = loader_class(config(url=large, memory_limit=8_000_000))
    model, model_config = Model(torch), types.SimpleNamespace(quantization=None)
    loader.download_model(model_config)
    loader.load_weights(model, model_config)
    model.check()
    model.parameters["lm_head"] = torch.zeros(1)
    with pytest.raises(ValueError, match="lacks 1 weights of the model, as lm_head"):
        loader.load_weights(model, model_config)
    loader.load_weights(model, types.SimpleNamespace(quantization="fp8"))


def test_options_that_devmem_does_not_have_are_named():
    assert _engines.checked({"url": "http://x/y", "ranks": 2})["ranks"] == 2
    for options, text in [
        (None, "needs the URL"),
        ({"url": 3}, "needs the URL"),
        ({"url": "http://x/y", "concurrency": 16}, "concurrency, which is no option"),
    ]:
        with pytest.raises(ValueError, match=text):
            _engines.checked(options)


@pytest.fixture
def sglang(monkeypatch):
    """SGLang's command line, registry of hooks, configuration and loader, as far as they are called."""
    choices = ["auto"]
    hooks = {}

    class HookRegistry:
        @staticmethod
        def register(target, hook, kind):
            assert target not in hooks and kind == "around"
            hooks[target] = hook

    def verify(self):
        if isinstance(self.load_format, str):
            assert self.load_format == "auto", self.load_format

    @dataclasses.dataclass
    class LoadConfig:
        load_format: object = "auto"
        model_loader_extra_config: object = dataclasses.field(default_factory=dict)

        def __post_init__(self):
            hook = hooks.get("sglang.srt.configs.load_config.LoadConfig._verify_load_format")
            hook(verify, self) if hook else verify(self)

    class DefaultModelLoader:
        def __init__(self, load_config):
            assert not load_config.model_loader_extra_config, "the base class knows other options"
            self.load_config = load_config

        def load_model(self, *, model_config, device_config):
            model = model_config.model
            model.load_weights(self._get_all_weights(model_config, model))
            return model.eval()

    module(monkeypatch, "sglang.srt.arg_groups.choices", add_load_format_choices=choices.extend)
    kinds = types.SimpleNamespace(AROUND="around")
    module(monkeypatch, "sglang.srt.plugins.hook_registry", HookRegistry=HookRegistry, HookType=kinds)
    module(monkeypatch, "sglang.srt.model_loader.loader", DefaultModelLoader=DefaultModelLoader)
    monkeypatch.setattr(devmem_tcp.sglang, "_is_registered", False)
    devmem_tcp.sglang.loader_class.cache_clear()
    yield types.SimpleNamespace(choices=choices, LoadConfig=LoadConfig)
    devmem_tcp.sglang.loader_class.cache_clear()


def test_sglang_loads_a_model_through_its_entry_point_and_by_the_class(sglang, torch, large):  # noqa: F811
    register = entry_point("sglang.srt.plugins")
    register()
    register()
    assert sglang.choices == ["auto", "devmem"]
    options = {"url": large, "memory_limit": 8_000_000}
    by_name = sglang.LoadConfig("devmem", options)
    by_class = sglang.LoadConfig(devmem_tcp.sglang.loader_class(), options)
    assert by_name.load_format is by_class.load_format
    assert sglang.LoadConfig("auto").load_format == "auto"
    for load_config in [by_name, by_class]:
        # As SGLang makes a loader of a class.
        loader = load_config.load_format(load_config)
        model = Model(torch)
        loader.download_model(None)
        loader.load_model(model_config=types.SimpleNamespace(model=model), device_config=None)
        model.check()
    with pytest.raises(ValueError, match="needs the URL"):
        by_name.load_format(sglang.LoadConfig("devmem"))


def test_weights_without_elements_and_of_unknown_types(torch, server):  # noqa: F811
    from test_load import checkpoint

    server.files["/m.safetensors"] = checkpoint()
    found = {}
    with pytest.raises(ValueError, match="small has the type F4"):
        for name, weight in _engines.weights({"url": f"{server.url}/m.safetensors"}):
            found[name] = weight
    if "none" in found:
        assert found["none"].shape == (0, 3) and found["none"].dtype == torch.float16
    if "brain" in found:
        assert found["brain"].dtype == torch.bfloat16 and found["brain"].tolist() == [1.0, 2.0]
