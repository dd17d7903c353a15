"""Checked access to the keys of a config.json: presence, type and plausible range."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Self

from gpuledger.errors import InputError, shown

#: Keys that do not affect kernels: training, generation, bookkeeping, and constants of elementwise formulas.
NEUTRAL = frozenset(
    """
    architectures model_type torch_dtype dtype transformers_version auto_map use_cache pretraining_tp torchscript
    use_bfloat16 tf_legacy_loss return_dict use_return_dict output_attentions output_hidden_states output_scores
    output_router_logits return_dict_in_generate id2label label2id num_labels problem_type finetuning_task
    task_specific_params tokenizer_class prefix pruned_heads chunk_size_feed_forward gradient_checkpointing
    attn_implementation cache_implementation is_composition is_decoder tie_encoder_decoder max_length min_length
    max_new_tokens do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
    typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    initializer_range initializer_factor layer_norm_eps layer_norm_epsilon rms_norm_eps norm_eps
    original_max_position_embeddings
    initial_context_length max_window_layers attention_dropout classifier_dropout hidden_dropout router_jitter_noise
    input_jitter_noise aux_loss_alpha seq_aux ep_size norm_topk_prob routed_scaling_factor scoring_func topk_method
    topk_group n_group query_pre_attn_scalar attn_logit_softcapping swiglu_limit swiglu_alpha scale_attn_weights
    scale_attn_by_inverse_layer_idx reorder_and_upcast_attn resid_pdrop embd_pdrop attn_pdrop summary_activation
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj n_ctx model_name base_model_name_or_path
    output_past predict_special_tokens n_special model_max_length residual_dropout embedding_dropout
    embedding_multiplier logits_scaling residual_multiplier attention_multiplier
    is_llama_config norm_epsilon attention_softmax_in_fp32 scale_attention_softmax_in_fp32 lm_head_bias
    embedding_initializer_range
    dim_model_base scale_depth scale_emb mup_denominator lm_head rm_head
    num_image_tokens
    dropout activation_dropout layerdrop init_std pad_key_length validate_runner_input
    """.split()  # noqa: SIM905
)
NEUTRAL_STARTS = ("_", "rope_", "unsloth", "transformers")
NEUTRAL_ENDS = ("_token_id", "_token_ids", "_token_index", "_loss_coef", "_loss_alpha")
_REQUIRED = object()
MAX_WIDTH, MAX_HEADS, MAX_LAYERS, MAX_VOCAB, MAX_EXPERTS = 2**20, 2**14, 10_000, 2**26, 2**12
MAX_POSITIONS, MAX_NUMBER = 2**31, 1e30


class ConfigKeys:
    """The keys of one object of a config.json; ``known`` collects those that were read.

    Parameters
    ----------
    inside : str
        The key that holds the object (``text_config``), or empty.
    defaults : mapping
        The architecture's values of missing keys.
    renamed : mapping
        The architecture's own key names (``n_embd``), and the usual ones.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        file: str,
        inside: str = "",
        defaults: Mapping[str, Any] | None = None,
        renamed: Mapping[str, str] | None = None,
    ):
        renamed = renamed or {}
        self.content = {renamed.get(key, key): value for key, value in content.items()}
        self.file, self.inside, self.defaults = file, inside, defaults or {}
        self.spelt = {usual: own for own, usual in renamed.items()}
        self.known: set[str] = set()

    def error(self, key: str, problem: str, remedy: str) -> InputError:
        key = f"{self.inside}.{self.spelt.get(key, key)}" if self.inside else self.spelt.get(key, key)
        return InputError(self.file, f"key {key}", problem, remedy)

    def value(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return the value of *key*; if missing, the architecture's default, else *default*."""
        self.known.add(key)
        value = self.content.get(key, self.defaults.get(key, default))
        if value is _REQUIRED:
            raise self.error(key, "it is missing", "use a model's complete config.json")
        return value

    def integer(self, key: str, high: int, default: Any = _REQUIRED, low: int = 1) -> Any:
        """Return a whole number within *low* … *high*; null counts as missing if there is a *default*."""
        value = self.value(key, default)
        if value is None and default is not _REQUIRED:
            return default
        if type(value) is not int:
            raise self.error(key, f"{_written(value)} is not a whole number", "correct it")
        if not low <= value <= high:
            # Python refuses to write very long numbers.
            text = value if abs(value) < 2**63 else "a number of more than 18 digits"
            raise self.error(key, f"{text} is not within {low} … {high}", "correct it")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.value(key, default)
        if type(value) is not bool and value is not None:
            raise self.error(key, f"{_written(value)} is neither true nor false", "correct it")
        return default if value is None else value

    def number(self, key: str, default: float | None) -> float | None:
        value = self.value(key, default)
        if value is None:
            return None
        if type(value) not in (int, float) or not abs(value) <= MAX_NUMBER:
            raise self.error(key, f"{_written(value)} is not a number within ±{MAX_NUMBER:g}", "correct it")
        return value

    def choice(self, key: str, choices: Iterable[str], default: str) -> str:
        value = self.value(key, default)
        if not isinstance(value, str) or value not in choices:
            raise self.error(key, f"unknown value {_written(value)}", f"known values: {', '.join(sorted(choices))}")
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        """Return an object; an empty one if missing or null."""
        value = self.value(key, None)
        if value is not None and not isinstance(value, Mapping):
            raise self.error(key, f"{_written(value)} is not an object", "correct it")
        return value or {}

    def inner(self, key: str) -> Self:
        """Return the keys of the object that *key* holds; of an empty one if missing or null."""
        return ConfigKeys(self.mapping(key), self.file, f"{self.inside}.{key}" if self.inside else key)

    def flags(self, key: str, layers: int) -> list[bool] | None:
        """Return a list of zeros and ones, one per layer; None if missing or null."""
        value = self.value(key, None)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != layers or any(one not in (0, 1) for one in value):
            raise self.error(key, f"not a list of {layers} zeros and ones", "correct it")
        return [bool(one) for one in value]

    def strings(self, key: str) -> list[str]:
        value = self.value(key, None)
        if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            raise self.error(key, f"{_written(value)} is not a list of names", "correct it")
        return value or []

    def fixed(self, key: str, wanted: Any, why: str) -> None:
        """Raise an error that says *why* unless the value is *wanted*, null or missing."""
        if (value := self.value(key, wanted)) is not None and value != wanted:
            raise self.error(key, f"{_written(value)}: {why}", f"only {_written(wanted)} is modelled")

    def unknown(self, allowed: Iterable[str] = ()) -> list[str]:
        """Return the keys that were not read, are not neutral or *allowed*, and have a non-empty value."""
        return [
            key
            for key, value in self.content.items()
            if key not in self.known
            and key not in NEUTRAL
            and key not in allowed
            and not key.startswith(NEUTRAL_STARTS)
            and not key.endswith(NEUTRAL_ENDS)
            and value not in (None, False, 0, "", [], {})
        ]


def _written(value: Any) -> str:
    """Return a value as the file has it: null, true, 1.5, 'text'."""
    return shown(value) if isinstance(value, str) else shown(json.dumps(value))[1:-1]
