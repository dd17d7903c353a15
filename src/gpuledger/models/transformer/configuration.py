"""Read a model's config.json: from a file, from ``resources/models/``, or from the Hugging Face hub."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from gpuledger import files
from gpuledger.errors import InputError, shown, warn
from gpuledger.ledger.download.names import name_fault
from gpuledger.models.transformer.blocks.vision import VisionTower
from gpuledger.models.transformer.families.known import FAMILIES
from gpuledger.models.transformer.families.nearest import check_fixed, unknown_architecture, unknown_keys
from gpuledger.models.transformer.formats.precision import Precision
from gpuledger.models.transformer.formats.quantisation import read_precision
from gpuledger.models.transformer.model import Layers, Model
from gpuledger.models.transformer.rules.attention import chosen
from gpuledger.models.transformer.rules.keys import MAX_POSITIONS, MAX_VOCAB, MAX_WIDTH, ConfigKeys
from gpuledger.models.transformer.rules.layers import read_layers
from gpuledger.models.transformer.rules.vision import read_vision

MODELS = files.RESOURCES / "models"
MAX_BYTES = 8 * 2**20
#: How long the hub may take to answer at all (s).
HUB_SECONDS = 5
#: Folders of files in the hub's cache and in a mirror.
_CACHED = re.compile(r".*/models--([^/]+)--([^/]+)/snapshots/[0-9a-f]{40}")
_MIRRORED = re.compile(r".*/huggingface\.co/([^/]+)/([^/]+)/resolve/main")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_WORD = re.compile(r"[\w.-]+")
#: Multimodal architectures, and the model_type of their text part where the file omits it.
_NESTED = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "inkling_mm_model": "inkling_text",
    "inkling2": "inkling2_text",
    "inkling2_loop": "inkling2_loop_text",
    "mllama": "mllama_text_model",
    "molmo2": "molmo2_text",
    "muse_spark": "muse_spark_text",
    "minimax_m3_vl": "minimax_m3",
    "qwen4_exp": "qwen4_exp_text",
    "glm5_next": "glm5_next_text",
    "step3p7": "step3p5",
    "step3_vl": "step3_text",
} | {"kimi_vl": "deepseek_v3", "deepseek_vl_v2": "deepseek_v2"}
#: Multimodal architectures whose text part is another architecture's, in most files with its keys at the top.
_TEXT = dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_omni_text"), "qwen2") | {
    **{"qwen3_omni_moe_text": "qwen3_moe", "glm4v_text": "glm4", "glm4v_moe_text": "glm4_moe"},
    **{"gemma4_unified_text": "gemma4_text", "apertus1p5_text": "apertus", "granite4_vision_text": "granite"},
    **{"hunyuan_vl_text": "hunyuan_v1_dense", "hy_v4_vl_text": "hy_v4", "paddleocr_vl_text": "ernie4_5"},
    **{
        "granite_docling_text": "granite",
        "cosmos3_edge_text": "arcee",
        "emu3_text_model": "llama",
        **dict.fromkeys(("phi3_v", "phi4mm", "phi4_multimodal"), "phi3"),
        **{"dots_ocr": "qwen2", "Keye": "qwen3", "KeyeVL1_5": "qwen3", "mimo_v2": "mimo_v2", "molmo": "molmo"},
        **{"chatglm": "chatglm", "qwen": "qwen"},
        "ernie4_5_moe_vl": "ernie4_5_vl_moe_text",
    },
}
#: MiniCPM-V and -o, by version (vLLM's minicpmv.py and minicpmo.py).
_TEXT |= {"minicpmv 2.0": "minicpm", "minicpmv 2.5": "llama", "minicpmv 2.6": "qwen2", "minicpmo 2.6": "qwen2"}
_TEXT |= {"minicpmv 4.0": "llama", "minicpmv 4.5": "qwen3"}
#: What the text part is called, and the part of an omni model that reads and writes text.
_INNER, _THINKER = ("text_config", "llm_config", "language_config"), "thinker_config"
#: What files of transformers leave out of a ``text_config`` where it is the architecture's default, as LLaVA's do.
_LLAMA = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
_LEFT_OUT = {
    **{"llama": {**_LLAMA, "vocab_size": 32000}, "mistral": {**_LLAMA, "intermediate_size": 14336}},
    "qwen2": {**_LLAMA, "intermediate_size": 22016, "vocab_size": 151936},
}
#: Keys that describe the parts in front of the text model where its own keys are at the top.
_OTHER_MODALITIES = re.compile(
    "(vision|visual|image|img_|video|audio|speech_|embd_layer|mm_|projector|spatial_merge|multimodal"
    "|query_num|slice_|drop_vision|batch_vision|batch_3d|use_image_id|init_(vision|audio|tts)|tts_|stream_input"
    "|processor_config|fast_(start|end)).*|version"
)
#: Number formats in the name of a checkpoint.
_NAMED_FORMAT = re.compile(
    r"(?<![a-z0-9])(nvfp4|mxfp[48]|fp[48]|int[48]|w[48]a(?:16|8|4)|awq|gptq|[48]bit)(?![a-z0-9])", re.I
)


def read_model(
    source: str | Path, mirror: str | Path | None = None, treat_as: str | None = None, paths: bool = True
) -> Model:
    """Read a model.

    Of a multimodal checkpoint the text part is read, without multi-token prediction layers, and the vision tower, if
    a rule for it is known; `Model.unread` says why it was not.

    Parameters
    ----------
    source : str or path
        A config.json (under any file name) or a folder with one; else the name of a model in ``resources/models/``,
        in any case; else a Hugging Face id such as ``Qwen/Qwen3-8B``, which is looked up in *mirror*, among the
        sources of ``resources/models/``, and on the hub (or in its cache), in this order.
    mirror : path, optional
        A folder laid out as ``huggingface.co/<id>/resolve/main/config.json``.
    treat_as : str, optional
        The ``model_type`` of a known architecture, as which the file is read whatever it says it is, and without the
        keys that this architecture does not know: at the reader's own risk, of which an ``InputWarning`` tells.
    paths : bool
        Whether *source* may be a path; not where it is a name in somebody's table or ``dataset.yaml``.

    Raises
    ------
    InputWarning
        The name says that weights are quantised, which nothing states; *treat_as*; a count that the file omits.
    InputError
        The model does not exist or is not accessible (gated, offline); the file is not JSON; a key is missing, has the
        wrong type, an absurd value or one that contradicts another; the architecture is unknown; or the file has keys
        that may change the kernels in a way that is not modelled.
    """
    if treat_as is not None and treat_as not in FAMILIES:
        problem = f"no known architecture is called {shown(treat_as)}"
        raise InputError(source, "treat_as", problem, f"known architectures: {', '.join(FAMILIES)}")
    name, file = _find(str(source), Path(mirror) if mirror is not None else None, paths)
    content = _with_quantisation_beside(_load(file), file)
    if paths and os.path.exists(source) and file.name == "config.json":
        name = _name_in_folder(Path(os.path.abspath(file)).parent, content)
    shown_file = str(file)
    content, inner, inside, stated = _text_part(content)
    kind = treat_as or stated
    if kind is None:
        raise InputError(shown_file, "", "the key model_type is missing", "use a model's complete config.json")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise unknown_architecture(kind, inner, shown_file)
    defaults = {**(_LEFT_OUT.get(kind, {}) if inside else {}), **family.defaults}
    keys = ConfigKeys(inner, shown_file, inside, defaults, family.renamed)
    outer = ConfigKeys(content, shown_file)
    hidden = keys.integer("hidden_size", MAX_WIDTH)
    vocab = keys.integer("vocab_size", MAX_VOCAB)
    check_fixed(keys, family)
    layers = read_layers(keys, family, hidden)
    tied = outer.flag("tie_word_embeddings", family.tied)
    # transformers 5 goes by the outer key and writes its default into the inner one.
    if not (inside and _by_transformers_5(content) and "tie_word_embeddings" in content):
        tied = keys.flag("tie_word_embeddings", tied)
    keys.known.add("tie_word_embeddings")
    positions = keys.integer("max_position_embeddings", MAX_POSITIONS, None)
    if family.positions and positions is None:
        raise keys.error("max_position_embeddings", "it is missing", "use a model's complete config.json")
    softcap = keys.number("final_logit_softcapping", None) is not None
    side_vocab = (keys.integer("vocab_size_per_layer_input", MAX_VOCAB, None) or 0) if layers[0].per_layer else 0
    holder = outer if outer.content.get("quantization_config") else keys
    further = keys.integer(family.further, MAX_VOCAB, 0, low=0) if isinstance(family.further, str) else family.further
    precision, layers = read_precision(holder, outer, layers, hidden, kind, bool(inside))
    strange = ", ".join(sorted(unknown_keys(keys)))
    if treat_as is not None:
        ignored = f", without its keys {strange}" if strange else ""
        warn(shown_file, "key model_type", shown(stated), f"read as {kind}, at your own risk{ignored}")
    elif strange:
        problem = f"unknown keys for the architecture {kind}, which may change its kernels"
        remedy = "remove them if they change no kernel, or ignore them at your own risk"
        raise InputError(shown_file, f"keys {strange}", problem, f"{remedy} with treat_as: {kind} (--treat-as)")
    if (named := _NAMED_FORMAT.search(name)) and set(_formats(precision, layers)) == {precision.plain}:
        problem = f"the name says {named[0]}, but neither this file nor hf_quant_config.json states a quantisation"
        warn(shown_file, "", problem, f"weights are taken as {precision.plain}; set precision: to change that")
    tower, unread = _vision(content, hidden, file, shown_file)
    others = ("vision", "audio") if tower is None else ("audio",)
    return Model(
        name=name,
        source=str(content.get("_source", shown_file)),
        hidden=hidden,
        vocab=vocab,
        layers=layers,
        tied=tied,
        further=further,
        norm_bias=family.norm_bias,
        norm_weights=family.norm_weights,
        head_bias=chosen(keys, family.head_bias),
        per_layer_vocab=side_vocab,
        positions=positions + family.more_positions if family.positions else 0,
        max_positions=positions,
        scaled_embedding=family.scaled_embedding,
        embedding_norm=family.embedding_norm,
        logit_softcap=softcap,
        precision=precision,
        vision=tower,
        towers=tuple(sense for sense in others if isinstance(content.get(f"{sense}_config"), Mapping)),
        unread=unread,
    )


def _text_part(content: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any], str, Any]:
    """Return what a file says of the model that reads and writes text.

    It is the file without what writes sound, the object in it that describes the text model and its key (empty: the
    file itself), and the architecture.
    """
    kind = content.get("model_type")
    if kind in ("minicpmv", "minicpmo"):
        kind = f"{kind} {content.get('version')}"
    if kind == "git" and content.get("num_local_experts"):  # Grok 2; the name is that of a model of captions, too
        kind = "grok"
    if isinstance(content.get(_THINKER), Mapping):
        said = {key: content[key] for key in ("transformers_version", "quantization_config") if key in content}
        content = {**content[_THINKER], **said}
    inner, inside = content, next((key for key in _INNER if isinstance(content.get(key), Mapping)), "")
    if inside:
        inner = content[inside]
        kind = inner.get("model_type", _NESTED.get(str(kind), kind))
    elif str(kind) in _TEXT:
        inner = {key: value for key, value in content.items() if not _OTHER_MODALITIES.fullmatch(key)}
    return content, inner, inside, _TEXT.get(str(kind), kind)


def _vision(content: Mapping[str, Any], hidden: int, file: Path, shown_file: str) -> tuple[VisionTower | None, str]:
    """Read the vision tower, or say why it cannot be read: the text model is read all the same."""
    if not isinstance(content.get("vision_config"), Mapping):
        return None, ""
    try:
        return read_vision(content, shown_file, hidden, _image_limits(file)), ""
    except InputError as error:
        return None, f"{error.place}: {error.problem}"


def _image_limits(file: Path) -> ConfigKeys:
    """Return what is said of images' sizes beside a config.json, or nothing."""
    for name, key in (("preprocessor_config.json", ""), ("processor_config.json", "image_processor")):
        beside = file.with_name(name)
        if file.name == "config.json" and beside.is_file():
            content = _load(beside)
            if isinstance(content := content.get(key) if key else content, Mapping):
                return ConfigKeys(content, str(beside), name)
    return ConfigKeys({}, str(file))


def _by_transformers_5(content: Mapping[str, Any]) -> bool:
    version = re.match(r"(\d+)\.", str(content.get("transformers_version", "")))
    return bool(version) and int(version[1]) >= 5


def _near(source: str, known: Mapping[str, Path]) -> str:
    """Return the model in `MODELS` whose name is nearest; empty if none is near."""
    near = get_close_matches(source.rpartition("/")[2].lower(), known, 1)
    return known[near[0]].stem if near else ""


def _find(source: str, mirror: Path | None, paths: bool) -> tuple[str, Path]:
    path = Path(source)
    # Those of os.path also answer for texts that cannot be a path.
    if paths and os.path.isdir(source):
        return path.name, path / "config.json"
    if paths and os.path.isfile(source):
        return path.stem, path
    if cached := _CACHED.fullmatch(source.rstrip("/")):  # of another machine
        source = "/".join(cached.groups())
    known = {file.stem.lower(): file for file in sorted(MODELS.glob("*.json"))}
    if found := known.get(source.lower()):
        return found.stem, found
    if not _HUB_ID.fullmatch(source) or source.endswith(".json") or name_fault(source):
        near = _near(source, known)
        remedy = f"did you mean {near}?" if near else "give a file, a hub id or a model of that folder"
        raise InputError(source, "", "not a file, not a model in resources/models and not a hub id", remedy)
    if mirror is not None:
        file = mirror / "huggingface.co" / source / "resolve" / "main" / "config.json"
        if file.is_file():
            return source, file
    address = f"https://huggingface.co/{source}/resolve/main/config.json"
    for file in known.values():
        if _load(file).get("_source") == address:
            return source, file
    return source, _from_hub(source, mirror, _near(source, known))


def _name_in_folder(folder: Path, content: Mapping[str, Any]) -> str:
    """Return the folder's name, and in brackets what the file says that it is, unless the folder's name says that.

    The file's own word alone would mislead: a fine-tuned model, or one with other sizes, keeps what it was made from.
    In the hub's cache and in a mirror, whose folders have other names, the name is the model's id.
    """
    if found := _CACHED.fullmatch(folder.as_posix()) or _MIRRORED.fullmatch(folder.as_posix()):
        return "/".join(found.groups())
    # Without an owner, `_name_or_path` was a folder of the machine that wrote the file.
    stated = (("_name_or_path", _HUB_ID), ("model_type", _WORD))
    said = (str(content[key]).rpartition("/")[2] for key, form in stated if form.fullmatch(str(content.get(key, ""))))
    name = next(said, "")[:96]
    return folder.name if _letters(name) in _letters(folder.name) else f"{folder.name} ({name})".strip()


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _from_hub(source: str, mirror: Path | None, near: str) -> Path:
    # Imported here: it takes a third of a second, and most models are local.
    from huggingface_hub import errors, hf_hub_download

    if not _hub_answers():
        hf_hub_download = partial(hf_hub_download, local_files_only=True)
    place = f"huggingface.co/{source}/resolve/main/config.json"
    remedy = f"download config.json by hand and give its path, or set `mirror:` to a folder that holds {place}"
    if mirror is not None:
        remedy += f" ({shown(mirror)} does not)"
    try:
        file = Path(hf_hub_download(source, "config.json"))
        if "quantization_config" not in _load(file):
            # Model Optimizer's quantisation; it comes to lie beside the other file.
            with suppress(errors.EntryNotFoundError):
                hf_hub_download(source, "hf_quant_config.json")
        return file
    except errors.GatedRepoError as error:
        problem = "the model is gated: the hub requires that you accept its licence"
        raise InputError(source, "", problem, f"accept it on the model's page and set HF_TOKEN, or {remedy}") from error
    except errors.RepositoryNotFoundError as error:
        problem = "the hub has no such model, or it is private"
        raise InputError(source, "", problem, "correct the id, or set HF_TOKEN") from error
    except errors.LocalEntryNotFoundError as error:
        remedy = f"if it has the layers of {near}, give that, which is here; else {remedy}" if near else remedy
        raise InputError(source, "", "the hub cannot be reached and the model is not cached", remedy) from error
    except errors.EntryNotFoundError as error:
        raise InputError(source, "", "it has no config.json", "give the id of a model with one") from error
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0][:200]
        raise InputError(source, "", f"config.json could not be downloaded ({reason})", remedy) from error


def _hub_answers() -> bool:
    """Ask the hub once: its library tries for half a minute, and prints a line each time."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_SECONDS)
    except Exception:  # whatever the library's HTTP client raises: which one that is differs between its versions
        return False
    return True


def _with_quantisation_beside(content: dict[str, Any], file: Path) -> dict[str, Any]:
    """Add what MLX has under ``quantization``, and what Model Optimizer and ExLlamaV3 write beside the config.json."""
    stated = content.get("quantization_config")
    own = content.get("quantization")
    if isinstance(own, dict) and "bits" in own:
        # mlx-lm writes the same once more as quantization_config.
        rest = {key: value for key, value in content.items() if key != "quantization"}
        return {**rest, "quantization_config": {**own, "quant_method": "mlx"}}
    if isinstance(stated, dict) and "quant_method" not in stated and {"bits", "group_size"} <= stated.keys():
        return {**content, "quantization_config": {**stated, "quant_method": "mlx"}}
    if isinstance(stated, dict) and stated.get("quant_method") == "exl3":
        beside = file.with_name("quantization_config.json")
        more = _load(beside) if beside.is_file() and beside != file else {}
        return {**content, "quantization_config": {**stated, **more}}
    beside = file.with_name(f"{file.stem.removesuffix('config')}hf_quant_config.json")
    if stated is not None or not file.stem.endswith("config") or not beside.is_file():
        return content
    settings = _load(beside).get("quantization")
    if not isinstance(settings, dict):
        raise InputError(beside, "key quantization", "it is missing or not an object", "download the file again")
    return {**content, "quantization_config": {"quant_method": "modelopt", **settings}}


def _load(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        remedy = "give the path of a readable config.json"
        raise InputError(file, "", f"the file cannot be read ({error.strerror})", remedy) from error
    if len(data) > MAX_BYTES:
        raise InputError(file, "", f"the file has more than {MAX_BYTES} bytes", "give a config.json, not weights")
    try:
        content = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_no_repetition)
    except json.JSONDecodeError as error:
        raise InputError(file, f"line {error.lineno}", f"not valid JSON: {error.msg}", "download it again") from error
    except (ValueError, RecursionError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise InputError(file, "", f"not valid JSON: {reason}", "download it again") from error
    if not isinstance(content, dict):
        raise InputError(file, "", "not a JSON object", "give the config.json of a model")
    return content


def _no_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if any(key == other for other, _ in pairs[:i]))
        raise ValueError(f"the key {shown(twice)} appears twice")
    return content


def _formats(precision: Precision, layers: tuple[Layers, ...]) -> Iterator[str]:
    """Yield the formats in which the matrices of the layers are stored."""
    for group in layers:
        own = precision.with_formats(group.formats)
        yield from (own.format_of(linear.kernel, linear.part).values for linear in group.linears(1))
