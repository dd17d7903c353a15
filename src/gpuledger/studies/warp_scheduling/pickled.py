"""Read a pickle as data: plain containers, numbers, strings and numpy arrays of numbers, and nothing else.

A pickle is a program. The standard unpickler runs it and calls whatever it names; this one first scans the program
without running it, then runs it with stand-ins for the few names that arrays need, and refuses all others. numpy's own
unpickling is not used: arrays are built here, from checked bytes.
"""

import io
import pickle
import pickletools
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from gpuledger.errors import InputError

MAX_BYTES = 256 * 1024**2
#: An operation takes a few microseconds. A short pickle can name one list often: calls take so many elements in all.
MAX_OPERATIONS = 1_000_000
REMEDY = "give plain lists, tuples, dicts and arrays of numbers, or the trace itself as 'progress'"
#: Types of array elements: booleans, integers, floats.
KINDS = "biuf"
#: Of numpy's arrays.
MAX_DIMENSIONS = 64


def load_plain(path: str | Path) -> Any:
    """Read a pickle that holds data only.

    Returns
    -------
    Nested dicts, lists, tuples and sets of numbers, texts, bytes and numpy arrays.

    Raises
    ------
    InputError
        Not a pickle, or one that names anything else, with its name; nothing that it names is imported or called.
    """
    path = Path(path)
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise InputError(path, "", f"{size} bytes are too many to check a pickle", REMEDY)
    content = path.read_bytes()
    with warnings.catch_warnings():
        # Invalid escapes in strings of old pickles do not matter here.
        warnings.simplefilter("ignore", DeprecationWarning)
        _scan(path, content)
        return _load(path, content)


def _load(path: Path, content: bytes) -> Any:
    try:
        return _finish(_Unpickler(io.BytesIO(content)).load(), {})
    except _Refused as refused:
        raise InputError(path, "", str(refused), REMEDY) from None
    except RecursionError:
        raise InputError(path, "", "its containers are nested too deeply", REMEDY) from None
    except (MemoryError, OverflowError):
        raise InputError(path, "", "it asks for more memory than there is", REMEDY) from None
    except Exception as error:
        # A damaged pickle can raise almost anything.
        raise InputError(path, "", f"not a whole pickle ({type(error).__name__}: {error})", REMEDY) from None


class _Refused(Exception):  # noqa: N818, it is caught at once
    pass


def _scan(path: Path, content: bytes) -> None:
    """Scan the operations without running any: all are complete, and none asks for unbounded memory."""
    highest = 0
    try:
        for number, (operation, argument, position) in enumerate(pickletools.genops(content)):
            if number >= MAX_OPERATIONS:
                raise InputError(path, f"operation {number}", "too many operations to check", REMEDY)
            if operation.name == "GLOBAL":
                if (name := str(argument).replace(" ", ".")) not in _NAMES:
                    raise InputError(path, "", f"it would call '{name}', which is not data", REMEDY)
            elif operation.name in ("INST", "PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER"):
                problem = f"operation {operation.name} at byte {position} is for objects, not for data"
                raise InputError(path, "", problem, REMEDY)
            elif operation.name in ("PUT", "BINPUT", "LONG_BINPUT"):
                # The unpickler allocates all places up to the one named.
                if int(argument) > highest + 1:
                    raise InputError(path, "", f"its memo jumps to place {argument}", REMEDY)
                highest = max(highest, int(argument))
    except InputError:
        raise
    except Exception as error:
        raise InputError(path, "", f"not a pickle ({error})", REMEDY) from None


class _Call:
    """A callable that a pickle may use, but can neither inspect nor change."""

    __slots__ = ("_make",)

    def __init__(self, make):
        object.__setattr__(self, "_make", make)

    def __call__(self, *arguments):
        return self._make(*arguments)

    def __setattr__(self, name, value):
        raise _Refused(f"it sets '{name}' of a function")

    def __setstate__(self, state):
        raise _Refused("it sets the state of a function")


class _Type:
    """A numpy dtype under construction: kind of number, size, byte order."""

    __slots__ = ("dtype",)

    def __init__(self, code):
        code = code.decode("ascii", "replace") if isinstance(code, bytes) else code
        if not isinstance(code, str) or len(code) > 4 or code.lstrip("<>=|")[:1] not in KINDS:
            # Only texts are shown: a short pickle can hold a tuple that takes years to write down.
            named = repr(code[:20]) if isinstance(code, str) else type(code).__name__
            raise _Refused(f"its arrays hold elements of type {named}, which are not numbers")
        self.dtype = np.dtype(code)

    def __setstate__(self, state):
        # (version, byte order, subtype, names, fields, item size, alignment, flags)
        if not isinstance(state, tuple) or len(state) < 7 or any(part is not None for part in state[2:5]):
            raise _Refused("its arrays hold records")
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise _Refused("its arrays have an unknown byte order")
        self.dtype = self.dtype.newbyteorder(order) if order != "|" else self.dtype


class _Array:
    """A numpy array under construction."""

    __slots__ = ("array",)

    def __init__(self):
        self.array = np.zeros(0)

    def __setstate__(self, state):
        # (version, shape, dtype, whether in Fortran order, bytes)
        if not isinstance(state, tuple) or len(state) != 5:
            raise _Refused("it describes an array in an unknown way")
        _, shape, kind, fortran, content = state
        self.array = _array(content, kind, shape, "F" if fortran else "C")


def _array(content: Any, kind: Any, shape: Any, order: str) -> np.ndarray:
    if not isinstance(kind, _Type) or not isinstance(shape, tuple) or not isinstance(content, (bytes, bytearray)):
        raise _Refused("its arrays hold objects, not numbers")
    if len(shape) > MAX_DIMENSIONS or not all(isinstance(length, int) and 0 <= length < 2**63 for length in shape):
        raise _Refused("an array has an impossible shape")
    expected = kind.dtype.itemsize
    for length in shape:
        expected *= length
    if expected != len(content):
        raise _Refused(f"an array of shape {shape} has {len(content)} bytes, not {expected}")
    # A view: many arrays of the same bytes take no more memory.
    return np.frombuffer(content, kind.dtype).reshape(shape, order=order)


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _frombuffer(content: Any, kind: Any, shape: Any, order: Any = "C") -> np.ndarray:
    return _array(content, kind, shape, "F" if order == "F" else "C")


def _scalar(kind: Any, content: Any = None) -> Any:
    return _array(content, kind, (), "C")[()]


def _encode(text: Any, encoding: Any = "") -> bytes:
    # Bytes in a pickle of protocol 2 and below.
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise _Refused("it encodes a text as something other than latin1")
    return text.encode("latin-1")


def _bytes(*arguments: Any) -> bytes:
    if arguments:
        raise _Refused("it makes bytes from something else")
    return b""


def _container(kind: type) -> Any:
    def make(*arguments: Any) -> Any:
        if len(arguments) > 1 or (arguments and not isinstance(arguments[0], (list, tuple))):
            raise _Refused(f"it makes a {kind.__name__} from something other than a list")
        for content in arguments:
            _check_keys(content if kind is not OrderedDict else [key for key, _ in content])
        return kind(*arguments)

    return make


#: Names that a pickle may use, of all releases of numpy, and what stands in for them.
_NAMES = {
    "collections.OrderedDict": _container(OrderedDict),
    "builtins.set": _container(set),
    "builtins.frozenset": _container(frozenset),
    "__builtin__.set": _container(set),
    "__builtin__.frozenset": _container(frozenset),
    "__builtin__.bytes": _bytes,
    "builtins.bytes": _bytes,
    "_codecs.encode": _encode,
    "numpy.ndarray": _reconstruct,
    "numpy.dtype": lambda code, *_: _Type(code),
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy._core.multiarray._reconstruct": _reconstruct,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy._core.multiarray.scalar": _scalar,
    "numpy.core.numeric._frombuffer": _frombuffer,
    "numpy._core.numeric._frombuffer": _frombuffer,
}


def _check_keys(keys: Iterable[Any]) -> None:
    """Refuse what takes long to hash: a short pickle can hold a tuple that contains itself a billion times over."""
    for key in keys:
        plain = isinstance(key, (str, bytes, float, np.generic, type(None)))
        if not plain and not (isinstance(key, int) and abs(key) < 2**64):
            kind = "large integer" if isinstance(key, int) else type(key).__name__
            raise _Refused(f"a key of its dicts or an element of its sets is a {kind}")


class _Unpickler(pickle._Unpickler):
    """The unpickler in Python, because the one in C hashes keys before anyone can look at them."""

    dispatch: ClassVar[dict] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: BinaryIO):
        super().__init__(file)
        self.taken = Counter()

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in _NAMES:
            raise _Refused(f"it would call '{full[:80]}', which is not data")
        return _Call(partial(self._call, _NAMES[full]))

    def _call(self, make: Callable, *arguments: Any) -> Any:
        """Call what copies its arguments, as long as all calls together take no more than a whole pickle could hold."""
        for kinds, most in (((list, tuple), MAX_OPERATIONS), ((str, bytes), 2 * MAX_BYTES)):
            self.taken[kinds] += sum(len(argument) for argument in arguments if isinstance(argument, kinds))
            if self.taken[kinds] > most:
                raise _Refused("it makes too many copies of its lists or texts")
        return make(*arguments)

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("it refers to objects outside itself")


def _checked(operation: bytes, keys: slice, target: tuple[Callable, type | tuple] | None = None) -> None:
    """Check what lies on the stack before an operation: the keys that it hashes, the type of what it changes."""
    run = _Unpickler.dispatch[operation[0]]

    def checked(unpickler: _Unpickler) -> None:
        _check_keys(unpickler.stack[keys])
        if target and not isinstance(changed := target[0](unpickler), target[1]):
            raise _Refused(f"it sets parts of an object of type {type(changed).__name__}")
        run(unpickler)

    _Unpickler.dispatch[operation[0]] = checked


_checked(pickle.SETITEM, slice(-2, -1), (lambda unpickler: unpickler.stack[-3], dict))
_checked(pickle.SETITEMS, slice(None, None, 2), (lambda unpickler: unpickler.metastack[-1][-1], dict))
_checked(pickle.BUILD, slice(0), (lambda unpickler: unpickler.stack[-2], (_Call, _Type, _Array)))
_checked(pickle.DICT, slice(None, None, 2))
for _operation in (pickle.ADDITEMS, pickle.FROZENSET):
    _checked(_operation, slice(None))


def _finish(value: Any, done: dict[int, Any]) -> Any:
    """Replace stand-ins by arrays. A container referenced in several places stays one object."""
    if isinstance(value, (_Array, _Type, _Call)):
        if not isinstance(value, _Array):
            raise _Refused("it holds a type or function")
        return value.array
    if not isinstance(value, (dict, list, tuple)):
        return value
    if id(value) not in done:
        # A list may contain itself: register it before its parts.
        if isinstance(value, dict):
            done[id(value)] = made = {}
            made.update((_finish(key, done), _finish(part, done)) for key, part in value.items())
        elif isinstance(value, list):
            done[id(value)] = made = []
            made.extend(_finish(part, done) for part in value)
        else:
            done[id(value)] = tuple(_finish(part, done) for part in value)
    return done[id(value)]
