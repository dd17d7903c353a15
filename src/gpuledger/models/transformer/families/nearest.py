"""What is said of a config.json whose architecture is unknown: which known one is nearest."""

import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from difflib import SequenceMatcher
from typing import Any

from gpuledger.errors import InputError, shown
from gpuledger.models.transformer.blocks.standard import Experts
from gpuledger.models.transformer.families.experts import WITH_EXPERTS
from gpuledger.models.transformer.families.family import ModelFamily
from gpuledger.models.transformer.families.known import FAMILIES, NOT_MODELLED
from gpuledger.models.transformer.model import Model
from gpuledger.models.transformer.rules.keys import MAX_VOCAB, MAX_WIDTH, ConfigKeys
from gpuledger.models.transformer.rules.layers import read_layers

#: An architecture is proposed for a file of an unknown one if it knows all of its keys but so many, and none of these,
#: which say that layers are of another kind.
_STRANGE, _KINDS = 3, re.compile("multi_query|alibi|parallel|type_vocab|mamba|ssm|conv|state|linear|group_size")
#: Sizes of a kind of layer, which the file must state itself.
_OWN = frozenset({"kv_lora_rank", "mamba_d_state"})


def unknown_architecture(kind: Any, content: Mapping[str, Any], file: str) -> InputError:
    """Name the known architecture that reads a file with the fewest keys left over; of several, by name.

    That all keys are known does not make the layers the same, so the message says how many parameters would be counted.
    """
    if part := NOT_MODELLED.get(str(kind).lower()):
        problem = f"{shown(kind)} is not modelled: {part}"
        return InputError(file, "key model_type", problem, "use a model of another architecture")
    found = []
    routed = any(re.search("expert|moe", key) for key in content)
    for name, family in FAMILIES.items():
        keys = ConfigKeys(content, file, "", family.defaults, family.renamed)
        # An architecture that would take its own sizes for the file's is not near.
        needed = {"hidden_size", "num_hidden_layers", "num_attention_heads", *_OWN & family.defaults.keys()}
        if not needed <= keys.content.keys() or (name in WITH_EXPERTS and not routed):
            continue
        with suppress(InputError), warnings.catch_warnings(action="ignore"):
            check_fixed(keys, family)
            hidden, vocab = keys.integer("hidden_size", MAX_WIDTH), keys.integer("vocab_size", MAX_VOCAB)
            layers = read_layers(keys, family, hidden)
            if routed and not any(isinstance(group.ffn, Experts) for group in layers):
                continue
            tied = keys.flag("tie_word_embeddings", family.tied)
            keys.known |= {"max_position_embeddings", "final_logit_softcapping"}
            strange = sorted(unknown_keys(keys))
            if len(strange) > _STRANGE or any(_KINDS.search(key) for key in strange):
                continue
            alike = SequenceMatcher(None, str(kind), name).ratio()
            more = {name: getattr(family, name) for name in ("norm_bias", "norm_weights", "embedding_norm")}
            model = Model(name, file, hidden, vocab, layers, tied, **more)
            found.append((len(strange), -alike if alike >= 0.6 else 0, len(found), name, strange, model.parameters))
    problem = f"unknown architecture {shown(kind)}"
    if not found:
        problem += ", and none of the known ones can read its keys"
        remedy = "use a model's complete config.json, or one of another architecture"
        return InputError(file, "key model_type", problem, remedy)
    *_, nearest, strange, parameters = min(found)
    ignored = f"ignores {', '.join(strange)}" if strange else "knows all of its keys"
    count = f"{parameters / 1e9:.2f} billion" if parameters >= 1e7 else f"{parameters:,}"
    remedy = f"{nearest} {ignored} and counts {count} parameters: only if the model has as many,"
    return InputError(file, "key model_type", problem, f"{remedy} treat_as: {nearest} (--treat-as)")


def check_fixed(keys: ConfigKeys, family: ModelFamily) -> None:
    keys.known |= family.neutral
    for key, wanted in {**family.fixed, "is_encoder_decoder": False}.items():
        keys.fixed(key, wanted, "another kind of layer")


def unknown_keys(keys: ConfigKeys) -> list[str]:
    """Return the keys that may say that layers are of another kind; of ``text_config``, only its own."""
    # Multi-token prediction layers are left out.
    return keys.unknown({"quantization_config", "num_nextn_predict_layers", "expert_dtype"})
