"""Architectures by ``model_type``: how the keys of a config.json become layers.

Sources: the configuration and model classes of Hugging Face transformers (4.57, 5 and 5.24), which define the defaults
of missing keys, which layers have a window, and where biases and norms are; for Kimi-K3 and Nemotron-NAS, those of
SGLang and vLLM.
"""

from gpuledger.models.transformer.families.dense import DENSE
from gpuledger.models.transformer.families.early import EARLY
from gpuledger.models.transformer.families.experts import WITH_EXPERTS
from gpuledger.models.transformer.families.hybrid import HYBRID

#: The first of those that read a file equally well is proposed for an unknown architecture.
FAMILIES = DENSE | EARLY | WITH_EXPERTS | HYBRID

#: Architectures that are refused, and what of their layers is not modelled.
NOT_MODELLED = {
    "phi4flash": "Mamba-1, and layers that share a cache",
    "unlimited_ocr_text": "a window beside which all tokens of the prompt's reference stay in view",
    "zaya": "attention whose queries and keys are convolved, and routers of several layers",
    "jetmoe": "a mixture of attention heads",
    "diffllama": "attention that is the difference of two",
    "rwkv": "a recurrence per channel",
    **dict.fromkeys(("rwkv5", "rwkv6", "rwkv7"), "inputs mixed with those of the token before, and a recurrence"),
    **dict.fromkeys(("recurrent_gemma", "xlstm"), "a gated recurrence"),
    "blt": "patches of bytes",
    "zamba": "Mamba-1, and a block that several layers share",
    "arctic": "experts that read the input of attention, beside a dense block behind it",
    "phi3small": "attention to blocks of keys",
    "solar": "sums with what much earlier layers read",
    **dict.fromkeys(
        ("iquestloopcoder", "hrm_text"), "layers that a token passes several times, with more between the cycles"
    ),
    **dict.fromkeys(
        (
            *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "modernbert"),
            *("mpnet", "nomic_bert", "roberta", "xlm-roberta"),
        ),
        "an encoder, which writes no text",
    ),
    **dict.fromkeys(
        (
            *("bart", "led", "longt5", "m2m_100", "marian", "mbart", "moonshine", "mt5", "pegasus", "t5"),
            *("t5gemma", "t5gemma2", "umt5", "whisper"),
        ),
        "a decoder that attends to an encoder",
    ),
}
ACTIVATIONS = frozenset(
    {"silu", "swish", "relu", "relu2", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu"}
    | {"swigluoai", "situ", "xielu"}
)
