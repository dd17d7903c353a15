"""YAML files validated against JSON schemas, with errors that a person can act on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import yaml

from gpuledger.errors import InputError

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError


#: Bounds of a YAML file: bytes, nesting, and values after aliases are expanded, a long text counting for several.
LARGEST_BYTES, DEEPEST, MOST_VALUES, VALUE_CHARACTERS = 4 * 2**20, 64, 200_000, 64

#: Characters of a name that others are compared with.
LONGEST_NAME = 200


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """A safe loader that rejects duplicate keys, of which PyYAML silently keeps the last.

    Dates stay strings, because JSON, and so JSON Schema, has no dates.
    """

    yaml_implicit_resolvers: ClassVar[dict] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict:
    seen = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key is not a plain name", key.start_mark)
        if key.tag != "tag:yaml.org,2002:merge":
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key '{key.value}'", key.start_mark)
            seen.add(key.value)
    loader.flatten_mapping(node)
    # Keys are names: `on` and `8.0` stay as written.
    return {str(key.value): loader.construct_object(value, deep=True) for key, value in node.value}


def _construct_number(loader: _Loader, node: yaml.ScalarNode) -> int | float | str:
    # In base 60, which YAML 1.2 no longer has, 12:30 would be 750, and a long one would take for ever.
    if ":" in node.value:
        return node.value
    if node.tag == "tag:yaml.org,2002:float":
        return loader.construct_yaml_float(node)
    if abs(number := loader.construct_yaml_int(node)) >= 2**64:
        raise yaml.constructor.ConstructorError(None, None, "a number of more than 64 bits", node.start_mark)
    return number


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)
for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _construct_number)


def load_yaml(file: str | Path) -> Any:
    """Read a YAML file."""
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
        _check_bounds(file, text)
        return yaml.load(text, Loader=_Loader)
    except FileNotFoundError:
        raise InputError(file, "", "the file does not exist", "create it, or correct the name") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(file, "", f"cannot be read ({error})", "save it as UTF-8 text") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise InputError(file, place, f"not valid YAML: {problem}", "correct the YAML there") from None


def _check_bounds(file: str | Path, text: str) -> None:
    """Refuse tags, and what would take too much stack, memory or time: C code recurses, and aliases multiply."""
    if len(text) > LARGEST_BYTES:
        problem = f"{len(text):,} characters are more than the {LARGEST_BYTES:,} that are read"
        raise InputError(file, "", problem, "put large tables into files of their own")
    sizes, open_nodes = {}, []
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if getattr(event, "tag", None):
            problem = f"not valid YAML: the tag {event.tag} asks for a type"
            raise InputError(file, f"line {event.start_mark.line + 1}", problem, "write the value without it")
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append([event.anchor, 0])
            if len(open_nodes) > DEEPEST:
                place = f"line {event.start_mark.line + 1}"
                raise InputError(file, place, f"nested deeper than {DEEPEST} levels", "write it flatter")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_nodes.pop()
            size += 1
        elif isinstance(event, yaml.AliasEvent):
            anchor, size = None, sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1 + len(event.value) // VALUE_CHARACTERS
        else:
            continue
        if anchor:
            sizes[anchor] = size
        if open_nodes:
            open_nodes[-1][1] += size
        if size > MOST_VALUES or (open_nodes and open_nodes[-1][1] > MOST_VALUES):
            place = f"line {event.start_mark.line + 1}"
            raise InputError(
                file, place, f"aliases expand to more than {MOST_VALUES:,} values", "write it without them"
            )


@cache
def packaged(package: str, name: str) -> dict:
    """Load ``<name>.schema.yaml`` of a package."""
    return yaml.load(resources.files(package).joinpath(f"{name}.schema.yaml").read_text("utf-8"), Loader=_Loader)


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggest the known name closest to `word`, or list all of them if none is close."""
    known = sorted(known)
    # Names from files may be as long as the file.
    close = get_close_matches(
        word[:LONGEST_NAME], (name for name in known if len(name) <= LONGEST_NAME), n=1, cutoff=0.5
    )
    return f"did you mean '{close[0]}'?" if close else f"known are: {', '.join(known)}"


def check(value: Any, schema: Mapping, file: str | Path, at: str = "") -> None:
    """Validate `value`, found under the key `at` of `file`, against a JSON schema.

    Raises
    ------
    InputError
        The most relevant violation; an unknown key is reported with the closest known one.
    """
    # Takes 0.1 s, and notebooks check nothing.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    try:
        error = best_match(Draft202012Validator(schema).iter_errors(value))
    except Exception as met:
        raise InputError(file, f"key {at}" if at else "", *_explain_schema(schema, met)) from None
    if error is not None:
        # Of alternative sets of keys, report on the one the user meant; best_match goes by depth.
        root = error
        while root.parent is not None:
            root = root.parent
        error = root if _sets_of_keys(root) else error
        path = [at] if at else []
        place = ".".join(path + [str(part) for part in error.absolute_path])
        problem, remedy = _explain(error)
        raise InputError(file, f"key {place}" if place else "", problem, remedy)


def _explain_schema(schema: Mapping, met: Exception) -> tuple[str, str]:
    """Say what is wrong with a schema that cannot be applied: of a study, perhaps one that is being written."""
    from jsonschema import Draft202012Validator

    error = next(Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(schema), None)
    place = ".".join(map(str, error.absolute_path)) if error else ""
    problem = f"its schema is wrong at '{place}' ({error.message})" if error else f"its schema is wrong ({met})"
    return problem, "correct the schema in study.yaml"


def _sets_of_keys(error: ValidationError) -> list[Mapping]:
    """Return the alternative sets of required keys that an object failed to match; empty for any other error."""
    alternatives = error.validator_value if error.validator in ("anyOf", "oneOf") else []
    keyed = isinstance(error.instance, Mapping) and all("required" in keys for keys in alternatives)
    return list(alternatives) if keyed else []


def _explain_sets(error: ValidationError, alternatives: list[Mapping]) -> tuple[str, str]:
    given = list(error.instance)
    allowed = [keys.get("propertyNames", {}).get("enum", keys["required"]) for keys in alternatives]
    shared = [sum(key in names for key in given) for names in allowed]
    if not any(shared):
        sets = sorted((" and ".join(keys["required"]) for keys in alternatives), key=len)
        return "all required keys are missing", f"give either {', or '.join(sets)}"
    meant = shared.index(max(shared))
    foreign = [key for key in given if key not in allowed[meant]]
    if foreign:
        own = next(key for key in given if key in allowed[meant])
        return f"the keys '{own}' and '{foreign[0]}' do not go together", "remove one of them"
    missing = next(key for key in alternatives[meant]["required"] if key not in given)
    meaning = error.schema.get("properties", {}).get(missing, {}).get("description", "it is required")
    return f"the key '{missing}' is missing", f"add it: {meaning}"


def _explain(error: ValidationError) -> tuple[str, str]:
    rule, wanted = error.validator, error.validator_value
    if alternatives := _sets_of_keys(error):
        return _explain_sets(error, alternatives)
    if error.instance is None:
        # What a draft leaves to the user.
        return "there is no value (null)", f"fill it in: {error.schema.get('description', 'it is required')}"
    if rule == "additionalProperties":
        known = error.schema.get("properties", {})
        unknown = sorted(set(error.instance) - set(known))
        return f"unknown key '{unknown[0]}'", nearest(unknown[0], known)
    if rule == "propertyNames" or (rule == "pattern" and error.parent is None):
        return f"the name {error.instance!r} is not allowed", error.schema.get("description", f"use {wanted}")
    if rule == "required":
        missing = [key for key in wanted if key not in error.instance]
        meaning = error.schema.get("properties", {}).get(missing[0], {}).get("description", "it is required")
        return f"the key '{missing[0]}' is missing", f"add it: {meaning}"
    if rule == "enum":
        options = [str(option) for option in wanted]
        remedy = nearest(str(error.instance), options)
        problem = f"{error.instance!r} is not one of {', '.join(options)}"
        return problem, remedy if remedy.startswith("did") else "use one of these"
    if rule == "type":
        kinds = wanted if isinstance(wanted, str) else " or ".join(wanted)
        return f"expected {kinds}, found {error.instance!r}", "correct the value"
    return error.message, error.schema.get("description", "correct the value")
