"""The models that are known by name, in the text form of models.

The idea: a preset is what a user could have written.  Sources: the papers of GPT-2, GPT-3,
Megatron (Narayanan et al. 2021, vocabulary 51,200), Korthikanti et al. 2022, Llama 2 and 3,
Mistral and Mixtral.
This module does not know what a model is.
"""

_LLAMA3 = "vocab=128256,kv_heads=8,positions=8192"
_MEGATRON = "vocab=51200,positions=2048"

MODELS: tuple[tuple[str, str], ...] = (
    ("gpt2", "gpt:layers=12,hidden=768,heads=12,vocab=50257,positions=1024"),
    ("gpt2-medium", "gpt:layers=24,hidden=1024,heads=16,vocab=50257,positions=1024"),
    ("gpt2-large", "gpt:layers=36,hidden=1280,heads=20,vocab=50257,positions=1024"),
    ("gpt2-xl", "gpt:layers=48,hidden=1600,heads=25,vocab=50257,positions=1024"),
    ("gpt3-175b", "gpt:layers=96,hidden=12288,heads=96,vocab=50257,positions=2048"),
    ("megatron-1.7b", f"gpt:layers=24,hidden=2304,heads=24,{_MEGATRON}"),
    ("megatron-3.6b", f"gpt:layers=30,hidden=3072,heads=32,{_MEGATRON}"),
    ("megatron-7.5b", f"gpt:layers=36,hidden=4096,heads=32,{_MEGATRON}"),
    ("megatron-18.4b", f"gpt:layers=40,hidden=6144,heads=48,{_MEGATRON}"),
    ("megatron-22b", f"gpt:layers=48,hidden=6144,heads=64,{_MEGATRON}"),
    ("megatron-39.1b", f"gpt:layers=48,hidden=8192,heads=64,{_MEGATRON}"),
    ("megatron-76.1b", f"gpt:layers=60,hidden=10240,heads=80,{_MEGATRON}"),
    ("megatron-145.6b", f"gpt:layers=80,hidden=12288,heads=96,{_MEGATRON}"),
    ("megatron-175b", f"gpt:layers=96,hidden=12288,heads=96,{_MEGATRON}"),
    ("megatron-310.1b", f"gpt:layers=96,hidden=16384,heads=128,{_MEGATRON}"),
    ("megatron-530b", f"gpt:layers=105,hidden=20480,heads=128,{_MEGATRON}"),
    ("megatron-1t", f"gpt:layers=128,hidden=25600,heads=160,{_MEGATRON}"),
    ("llama-2-7b", "llama:layers=32,hidden=4096,heads=32,vocab=32000,positions=4096"),
    ("llama-2-13b", "llama:layers=40,hidden=5120,heads=40,vocab=32000,positions=4096"),
    (
        "llama-2-70b",
        "llama:layers=80,hidden=8192,heads=64,vocab=32000,kv_heads=8,ffn=28672,positions=4096",
    ),
    ("llama-3-8b", f"llama:layers=32,hidden=4096,heads=32,ffn=14336,{_LLAMA3}"),
    ("llama-3-70b", f"llama:layers=80,hidden=8192,heads=64,ffn=28672,{_LLAMA3}"),
    ("llama-3-405b", f"llama:layers=126,hidden=16384,heads=128,ffn=53248,{_LLAMA3}"),
    (
        "mistral-7b",
        "llama:layers=32,hidden=4096,heads=32,vocab=32000,kv_heads=8,ffn=14336,positions=32768",
    ),
    (
        "mixtral-8x7b",
        "moe:layers=32,hidden=4096,heads=32,vocab=32000,kv_heads=8,ffn=14336,positions=32768",
    ),
    (
        "mixtral-8x22b",
        "moe:layers=56,hidden=6144,heads=48,vocab=32000,kv_heads=8,ffn=16384,positions=65536",
    ),
)
