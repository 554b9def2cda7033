"""A language model by its numbers, as text: `gpt:layers=48,hidden=8192,heads=64,vocab=50257`.

The idea: a family says what blocks are made of, a few numbers how large they are; a name stands for
a text (`gpt3-175b`), and any number can be said anew behind it (`gpt3-175b:vocab=51200`).
`str(spec)` says the family, the four numbers that all have, and what differs from the family.

  gpt     layer norms, biases, learned positions, dropout, GELU, the head tied to the embedding
  llama   RMS norms, rotary positions, no biases, gated SiLU, a head of its own, grouped queries
  moe     llama, with the feed-forward of each token done by the best `top_k` of `experts`

This module does not know what a model costs (`accounting`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from tilewright.base.errors import ModelSpecError, expect_text
from tilewright.cost.model_config import read_config
from tilewright.cost.model_presets import MODELS
from tilewright.cost.scanner import Scanner

LARGEST = 1 << 40
FAMILIES = ("gpt", "llama", "moe")
Settings = Mapping[str, int | bool | str]

_REQUIRED = ("layers", "hidden", "heads", "vocab")
_LEAST = {
    "layers": 1, "hidden": 1, "heads": 1, "vocab": 1, "kv_heads": 1, "head": 1, "ffn": 1,
    "positions": 1, "experts": 0, "top_k": 0,
}  # fmt: skip
_SWITCHES = ("no", "yes")
_MEND = "write FAMILY:layers=..,hidden=..,heads=..,vocab=.., or a name that is known"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The numbers of a decoder of text.

    layers, hidden (width), heads, vocab.  kv_heads: heads of keys and values.  head: width of one.
    ffn: inner width of the feed-forward, or of each expert.  positions: the longest sequence.
    experts: 0 for a dense feed-forward; top_k of them work on each token.  tied: the head is the
    embedding.  gated: a third matrix in the feed-forward.  norm: "layer" (scale and shift) or
    "rms" (scale).  bias: of all linear layers but the head and the router.  learned: positions are
    a table.  dropout: after the embedding, attention and feed-forward, and of the attention.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    vocab: int
    kv_heads: int
    head: int
    ffn: int
    positions: int
    experts: int
    top_k: int
    tied: bool
    gated: bool
    norm: str
    bias: bool
    learned: bool
    dropout: bool

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not least <= value <= LARGEST:
                _refuse(f"{name} is out of bounds", f"from {least} to {LARGEST}", str(value))
        if self.heads % self.kv_heads:
            _refuse(
                "its heads do not share keys and values evenly",
                "heads to be a multiple of kv_heads",
                f"heads={self.heads}, kv_heads={self.kv_heads}",
            )
        if self.top_k > self.experts or bool(self.top_k) != bool(self.experts):
            _refuse(
                "a token cannot go to that many experts",
                "top_k from 1 to experts, or neither",
                f"experts={self.experts}, top_k={self.top_k}",
            )

    @classmethod
    def parse(cls, text: str) -> "ModelSpec":
        """Return the model that a text means.

        A family or a known name, with `:key=value,...` behind it, or the path of a Hugging Face
        `config.json`.  Raises ModelSpecError with line, column and the nearest names.
        """
        text = expect_text(text, "a model", ModelSpecError).strip()
        if text.endswith(".json"):
            return specify(*read_config(Path(text)))
        return specify(*_read(Scanner(text, "model", ModelSpecError, _MEND)))

    def __str__(self) -> str:
        said = {key: getattr(self, key) for key in _REQUIRED}
        plain = _rules(self.family, said)
        more = {key: getattr(self, key) for key in plain if getattr(self, key) != plain[key]}
        return f"{self.family}:" + ",".join(f"{k}={_word(v)}" for k, v in (said | more).items())


_KEYS = tuple(field.name for field in fields(ModelSpec) if field.name != "family")


def specify(family: str, settings: Settings) -> ModelSpec:
    """Return a model of a family; what the settings leave out follows from the family's rules.

    settings: layers, hidden, heads and vocab at least.  Raises ModelSpecError.
    """
    hidden, heads = settings["hidden"], settings["heads"]
    assert isinstance(hidden, int) and isinstance(heads, int), "widths are numbers"
    if hidden % heads and "head" not in settings:
        _refuse(
            "its width is not made of whole heads",
            "hidden to be a multiple of heads, or head=",
            f"hidden={hidden}, heads={heads}",
        )
    return ModelSpec(family, **_rules(family, settings) | dict(settings))  # type: ignore[arg-type]


def model_names() -> tuple[str, ...]:
    """Return the names of the models that are known."""
    return tuple(name for name, _ in MODELS)


def _rules(family: str, settings: Settings) -> dict[str, int | bool | str]:
    """What a family says of the numbers that are left out.

    The feed-forward of a Llama is 8/3 of the width, rounded up to a multiple of 256.
    """
    hidden, heads = int(settings["hidden"]), int(settings["heads"])
    gpt = family == "gpt"
    return {
        "kv_heads": heads,
        "head": 0 if hidden % heads else hidden // heads,
        "ffn": 4 * hidden if gpt else -(-8 * hidden // 768) * 256,
        "positions": 2048,
        "experts": 8 if family == "moe" else 0,
        "top_k": 2 if family == "moe" else 0,
        "tied": gpt,
        "gated": not gpt,
        "norm": "layer" if gpt else "rms",
        "bias": gpt,
        "learned": gpt,
        "dropout": gpt,
    }


def _refuse(summary: str, expected: str, found: str) -> None:
    raise ModelSpecError(
        f"there can be no such model: {summary}", expected=expected, found=found, mend=_MEND
    )


def _read(scanner: Scanner) -> tuple[str, dict[str, int | bool | str]]:
    """Read a family or a name, and the numbers behind it; those of a name come first."""
    name = scanner.one_of((*FAMILIES, *model_names()), "model")
    family, settings = name, dict[str, int | bool | str]()
    if name not in FAMILIES:
        family, settings = _read(Scanner(dict(MODELS)[name], "model", ModelSpecError, _MEND))
    if name in FAMILIES or scanner.next.text == ":":
        scanner.expect(":")
        settings |= _settings(scanner)
    missing = [key for key in _REQUIRED if key not in settings]
    if missing:
        scanner.refuse(f"{missing[0]} is missing", ", ".join(f"{key}=" for key in missing))
    scanner.end()
    return family, settings


def _settings(scanner: Scanner) -> dict[str, int | bool | str]:
    found: dict[str, int | bool | str] = {}
    while not found or scanner.take(","):
        if scanner.next.text in found:
            scanner.refuse(f"{scanner.next.text!r} is said twice", "each number once")
        key = scanner.one_of(_KEYS, "number of a model")
        scanner.expect("=")
        found[key] = _value(scanner, key)
    return found


def _value(scanner: Scanner, key: str) -> int | bool | str:
    if key == "norm":
        return scanner.one_of(("layer", "rms"), "norm")
    if key not in _LEAST:
        return scanner.one_of(_SWITCHES, "answer") == "yes"
    if _LEAST[key] == 0 and scanner.take("0"):
        return 0
    return scanner.integer(key, most=LARGEST)


def _word(value: object) -> str:
    return _SWITCHES[value] if isinstance(value, bool) else str(value)
