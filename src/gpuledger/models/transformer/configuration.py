"""Read a model from a config.json: a file, one of ``resources/models/``, or one of the Hugging Face hub."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gpuledger import files
from gpuledger.errors import InputError
from gpuledger.ledger.download.names import name_fault, shown
from gpuledger.models.transformer.families import FAMILIES, MAX_POSITIONS, MAX_VOCAB, MAX_WIDTH, read_layers
from gpuledger.models.transformer.keys import Keys
from gpuledger.models.transformer.model import Model
from gpuledger.models.transformer.quantisation import read_precision

MODELS = files.RESOURCES / "models"
MAX_BYTES = 8 * 2**20
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
#: Outer architectures whose text part has a model_type of its own, and what it is where it does not say.
_NESTED = {"gemma3": "gemma3_text"}
#: Keys beside ``text_config`` that describe what comes before the text model.
_OTHER_MODALITIES = re.compile("(vision|image|video|audio|mm_|projector|multimodal|spatial_merge|boi_|eoi_).*")


def read_model(
    source: str | Path,
    resources: str | Path = MODELS,
    mirror: str | Path | None = None,
    ignore: Iterable[str] = (),
) -> Model:
    """Read a model.

    Parameters
    ----------
    source : str or path
        A config.json (of any name) or a folder that holds one; else a name in *resources*, upper or lower case; else
        an id of the Hugging Face hub, as ``Qwen/Qwen3-8B``, which is looked up in *mirror*, among the sources of
        *resources*, and on the hub (or in its cache) in this order.
    resources : path
        A folder of configurations ``<name>.json``; their key ``_source`` is the address they are from.
    mirror : path, optional
        A folder laid out as ``huggingface.co/<id>/resolve/main/config.json``.
    ignore : names of keys
        Unknown keys that change no kernel, as the caller knows.

    Returns
    -------
    Model

    Raises
    ------
    InputError
        There is no such model, it cannot be had (gated, offline), it is no JSON, a key is missing, of the wrong type,
        absurd or contradicts another, the architecture is unknown (with the keys that no known one has), or a known
        architecture has keys that are not known to leave the kernels as they are.
    """
    name, file = _find(str(source), Path(resources), Path(mirror) if mirror is not None else None)
    content = _load(file)
    shown_file = str(file)
    inner, inside, kind = content, "", content.get("model_type")
    if isinstance(content.get("text_config"), Mapping):
        inner, inside = content["text_config"], "text_config"
        kind = inner.get("model_type", _NESTED.get(str(kind)))
    if kind is None:
        raise InputError(shown_file, "", "there is no model_type", "take the config.json of a model, whole")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise _unknown_architecture(kind, inner, shown_file)
    keys = Keys(inner, shown_file, inside, family.defaults, family.renamed)
    outer = Keys(content, shown_file)
    hidden = keys.integer("hidden_size", MAX_WIDTH)
    vocab = keys.integer("vocab_size", MAX_VOCAB)
    for key, wanted in {**family.fixed, "is_encoder_decoder": False}.items():
        keys.fixed(key, wanted, "another kind of layer")
    layers = read_layers(keys, family, hidden)
    tied = keys.flag("tie_word_embeddings", outer.flag("tie_word_embeddings", family.tied))
    positions = keys.integer("max_position_embeddings", MAX_POSITIONS, None)
    if family.positions and positions is None:
        raise keys.error("max_position_embeddings", "it is missing", "take the config.json of a model, whole")
    omitted = [f"{key.removesuffix('_config')} part" for key in content if inside and key.endswith("_config")]
    omitted = [part for part in omitted if part not in ("text part", "quantization part")]
    if further := keys.integer("num_nextn_predict_layers", 10_000, 0, low=0):
        omitted.append(f"{further} layers for further tokens (MTP)")
    precision, layers = read_precision(outer if outer.content.get("quantization_config") else keys, outer, layers)
    model = Model(
        name=name,
        source=str(content.get("_source", shown_file)),
        hidden=hidden,
        vocab=vocab,
        layers=layers,
        tied=tied,
        norm_bias=family.norm_bias,
        positions=positions if family.positions else 0,
        max_positions=positions,
        scaled_embedding=family.scaled_embedding,
        logit_softcap=keys.number("final_logit_softcapping", None) is not None,
        precision=precision,
        omitted=tuple(omitted),
    )
    _refuse_unknown(keys, outer, kind, bool(inside), frozenset(ignore))
    return model


def _find(source: str, resources: Path, mirror: Path | None) -> tuple[str, Path]:
    path = Path(source)
    if path.is_dir():
        return path.resolve().name, path / "config.json"
    if path.is_file():
        return path.resolve().parent.name if path.name == "config.json" else path.stem, path
    known = {file.stem.lower(): file for file in sorted(resources.glob("*.json"))}
    if found := known.get(source.lower()):
        return found.stem, found
    if not _HUB_ID.fullmatch(source) or source.endswith(".json") or name_fault(source):
        near = get_close_matches(source.lower(), known, 1)
        remedy = f"did you mean {known[near[0]].stem}?" if near else "give a file, a hub id or a name of that folder"
        raise InputError(source, "", f"it is no file, no model of {resources} and no hub id", remedy)
    if mirror is not None:
        file = mirror / "huggingface.co" / source / "resolve" / "main" / "config.json"
        if file.is_file():
            return source, file
    address = f"https://huggingface.co/{source}/resolve/main/config.json"
    for file in known.values():
        if _load(file).get("_source") == address:
            return source, file
    return source, _from_hub(source, mirror)


def _from_hub(source: str, mirror: Path | None) -> Path:
    # Imported here: it takes a third of a second, and most models are at hand.
    from huggingface_hub import errors, hf_hub_download

    place = f"huggingface.co/{source}/resolve/main/config.json"
    remedy = f"download config.json by hand and give its path, or set `mirror:` to a folder that holds {place}"
    if mirror is not None:
        remedy += f" ({shown(mirror)} does not)"
    try:
        return Path(hf_hub_download(source, "config.json"))
    except errors.GatedRepoError as error:
        problem = "the hub gives it only to those who have accepted its licence"
        remedy = f"accept it on its page and set HF_TOKEN, or {remedy}"
        raise InputError(source, "", problem, remedy) from error
    except errors.RepositoryNotFoundError as error:
        problem = "the hub has no such model, or it is private"
        raise InputError(source, "", problem, "correct the id, or set HF_TOKEN") from error
    except errors.LocalEntryNotFoundError as error:
        raise InputError(source, "", "the hub cannot be reached, and its cache does not have it", remedy) from error
    except errors.EntryNotFoundError as error:
        raise InputError(source, "", "it has no config.json", "give the id of a model with one") from error
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0][:200]
        raise InputError(source, "", f"the hub did not give its config.json ({reason})", remedy) from error


def _load(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        remedy = "give the path of a config.json that can be read"
        raise InputError(file, "", f"it cannot be read ({error.strerror})", remedy) from error
    if len(data) > MAX_BYTES:
        raise InputError(file, "", f"it has more than {MAX_BYTES} bytes", "give a config.json, not weights")
    try:
        content = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_no_repetition)
    except json.JSONDecodeError as error:
        raise InputError(file, f"line {error.lineno}", f"it is no JSON: {error.msg}", "download it again") from error
    except (ValueError, RecursionError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise InputError(file, "", f"it is no JSON: {reason}", "download it again") from error
    if not isinstance(content, dict):
        raise InputError(file, "", "it holds no JSON object", "give the config.json of a model")
    return content


def _no_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if any(key == other for other, _ in pairs[:i]))
        raise ValueError(f"the key {shown(twice)} is there twice")
    return content


def _unknown_architecture(kind: Any, content: Mapping[str, Any], file: str) -> InputError:
    everywhere = {"num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"}
    everywhere |= {"hidden_size", "hidden_act", "max_position_embeddings", "tie_word_embeddings", "head_dim"}
    everywhere |= {"attention_bias", "layer_types", "sliding_window", "quantization_config", "partial_rotary_factor"}
    everywhere |= {"num_experts_per_tok", "num_experts", "moe_intermediate_size", "decoder_sparse_step"}
    everywhere |= {"mlp_only_layers", "shared_expert_intermediate_size", "use_sliding_window", "mlp_bias"}
    strange = Keys(content, file).unknown(everywhere)
    problem = f"the architecture {shown(kind)} is not known"
    if strange:
        problem += f", nor are its keys {', '.join(sorted(strange))}"
    return InputError(file, "key model_type", problem, f"known are {', '.join(FAMILIES)}")


def _refuse_unknown(keys: Keys, outer: Keys, kind: str, nested: bool, ignore: frozenset[str]) -> None:
    strange = keys.unknown({*ignore, "quantization_config"})
    if nested:
        beside = outer.unknown({*ignore, "text_config", "quantization_config"})
        strange += [key for key in beside if not _OTHER_MODALITIES.fullmatch(key)]
    if strange:
        problem = f"the architecture {kind} has no such keys, and they may change its kernels"
        remedy = "remove them, or name them in `ignore` if they change no kernel"
        raise InputError(keys.file, f"keys {', '.join(sorted(strange))}", problem, remedy)
