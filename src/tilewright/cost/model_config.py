"""A Hugging Face `config.json` as the numbers of a model: GPT-2, Llama, Mistral, Mixtral.

The idea: a table says which key is which number, and what it is where the key is left out; all that
is read is checked, as the file may come from anywhere.  A sliding window changes neither parameters
nor what is counted here: attention is counted over the whole sequence.
This module does not know what a model costs.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from tilewright.base.errors import ModelSpecError
from tilewright.cost.scanner import nearest

LARGEST_FILE = 1 << 20
Settings = dict[str, int | bool | str]

# Our number, their key, its value where the key is left out (None: it must be there or follows).
_GPT2 = (
    ("layers", "n_layer", 12), ("hidden", "n_embd", 768), ("heads", "n_head", 12),
    ("vocab", "vocab_size", 50257), ("positions", "n_positions", 1024), ("ffn", "n_inner", None),
    ("tied", "tie_word_embeddings", True),
)  # fmt: skip
_LLAMA = (
    ("layers", "num_hidden_layers", 32), ("hidden", "hidden_size", 4096),
    ("heads", "num_attention_heads", 32), ("vocab", "vocab_size", 32000),
    ("ffn", "intermediate_size", 11008), ("kv_heads", "num_key_value_heads", None),
    ("head", "head_dim", None), ("positions", "max_position_embeddings", 2048),
    ("tied", "tie_word_embeddings", False),
)  # fmt: skip
_MIXTRAL = (
    *_LLAMA, ("experts", "num_local_experts", 8), ("top_k", "num_experts_per_tok", 2)
)  # fmt: skip
# Kind of model -> our family, its keys, and the defaults that differ from Llama's.
_KINDS: dict[str, tuple[str, tuple[tuple[str, str, int | bool | None], ...], Settings]] = {
    "gpt2": ("gpt", _GPT2, {}),
    "llama": ("llama", _LLAMA, {}),
    "mistral": (
        "llama",
        _LLAMA,
        {"kv_heads": 8, "ffn": 14336, "positions": 131072},
    ),
    "mixtral": (
        "moe",
        _MIXTRAL,
        {"kv_heads": 8, "ffn": 14336, "positions": 131072},
    ),
}
# Keys that would make it another model, and the only values that do not.
_FIXED = {"attention_bias": (None, False), "mlp_bias": (None, False)}


def read_config(path: Path) -> tuple[str, Settings]:
    """Return the family and the numbers of a model; raise ModelSpecError naming what is wrong."""
    config = _load(path)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _KINDS:
        close = nearest(kind, _KINDS) if isinstance(kind, str) else ""
        _refuse(path, "of a model that is not known", f"one of {', '.join(_KINDS)}",
                f"model_type {_shown(kind)}", known=close)  # fmt: skip
    family, keys, defaults = _KINDS[kind]
    for key, allowed in _FIXED.items():
        if config.get(key) not in allowed:
            _refuse(path, "of linear layers that a Llama does not have", f"{key} to be false",
                    f"{key}: {_shown(config[key])}")  # fmt: skip
    found: Settings = {}
    for name, key, default in keys:
        value = config.get(key, defaults.get(name, default))
        if value is not None or default is not None:
            found[name] = _checked(path, key, value, isinstance(default, bool))
    return family, found


def _load(path: Path) -> Mapping[str, object]:
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
    except OSError as error:
        _refuse(path, "that cannot be read", "a file", error.strerror or type(error).__name__)
    if len(raw) > LARGEST_FILE:
        _refuse(path, "that is too long", f"at most {LARGEST_FILE} bytes", "more")
    try:
        config = json.loads(raw.decode("utf-8"))
    except json.JSONDecodeError as error:
        _refuse(path, "that is not JSON", "a whole JSON object", error.msg,
                place=f", line {error.lineno}, column {error.colno}")  # fmt: skip
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        _refuse(path, "that is not JSON", "a JSON object in UTF-8", type(error).__name__)
    if not isinstance(config, dict):
        _refuse(path, "that is no object", "a JSON object", type(config).__name__)
    return config


def _checked(path: Path, key: str, value: object, switch: bool) -> int | bool:
    if switch and isinstance(value, bool):
        return value
    if not switch and type(value) is int and 1 <= value < 1 << 40:
        return value
    expected = "true or false" if switch else "a whole number above zero"
    _refuse(path, f"whose {key} has no meaning", expected, _shown(value))


def _shown(value: object) -> str:
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse(
    path: Path, summary: str, expected: str, found: str, *, known: str = "", place: str = ""
) -> NoReturn:
    raise ModelSpecError(
        f"a model's configuration {summary}",
        expected=expected,
        found=found,
        known=known,
        where=f"{path.name}{place}",
        mend="give the config.json of a GPT-2, Llama, Mistral or Mixtral, or write the model out",
    )
