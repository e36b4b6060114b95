"""Compiled kernels without the compiler: llvmlite loads the machine code that numba has stored, ctypes calls it.

Importing numba takes 0.35 s of CPU time and 70 MiB in each process; llvmlite alone 0.04 s. A process that only calls
kernels which were compiled before needs no compiler. A call takes about 2 µs an array, more than numba's own: so this
is for processes that call a kernel some thousand times, on much data.

A compiled function takes a pointer to its result and one to an error, then its arguments. An array is seven words or
more: two owners that only numba's own arrays have, the number of items, their size, the address, shape and strides.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SCALARS: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    **{name: getattr(ctypes, f"c_{name}") for name in ("int8", "int16", "int32", "int64")},
    **{name: getattr(ctypes, f"c_{name}") for name in ("uint8", "uint16", "uint32", "uint64")},
}
_OF_NUMBA = ("NRT_", "numba_")
_WRAPPERS = ("_ZN7cpython", "cfunc.")
"""How the names of functions begin through which numba would call the compiled one."""
_UNCALLED = "NRT_MemInfo_call_dtor"
"""The end of an array that has owners, which arrays have not here."""
_NO_VALUE = "none"
_lock = threading.Lock()


class StoredCode(NamedTuple):
    """The machine code of a function for arguments of certain types."""

    symbol: str
    returns: str
    """The type of the result, or "none"."""
    uncalled: list[str]
    """Functions of numba that the code names and does not call."""
    code: bytes

    def encode(self) -> bytes:
        return b"\n".join([" ".join([self.symbol, self.returns, *self.uncalled]).encode(), self.code])

    @classmethod
    def decode(cls, data: bytes) -> StoredCode:
        names, code = data.split(b"\n", 1)
        symbol, returns, *uncalled = names.decode().split(" ")
        return cls(symbol, returns, uncalled, code)


class NativeFunction:
    """A compiled function that is called without numba. Releases the interpreter lock."""

    def __init__(self, stored: StoredCode, types: Sequence[str]) -> None:
        words: list[Any] = [ctypes.c_void_p, ctypes.c_void_p]
        for name in types:
            words += [_SCALARS[name]] if name in _SCALARS else _list_array_words(name)
        self._call = ctypes.CFUNCTYPE(ctypes.c_int32, *words)(_load(stored))
        self._returns = _SCALARS.get(stored.returns)

    def call(self, arguments: Iterable[Any]) -> tuple[bool, Any]:
        """Call it; returns whether it succeeded, and its result. If it did not, only numba can say why."""
        result, error = (self._returns or ctypes.c_void_p)(), ctypes.c_void_p()
        words: list[Any] = [ctypes.addressof(result), ctypes.addressof(error)]
        for value in arguments:
            if isinstance(value, np.ndarray):
                words += (None, None, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides)
            else:
                words.append(value.item() if isinstance(value, np.generic) else value)
        status = self._call(*words)
        # None as a result is a status of its own.
        return status in (0, -2), None if self._returns is None else result.value


def describe_arguments(arguments: Iterable[Any]) -> tuple[str, ...] | None:
    """Name the types of arguments, in our own words; None if one of them is only understood by numba.

    >>> describe_arguments([np.zeros(3, np.uint16), 7, np.uint8(7)])
    ('<u2 1 C', 'int64', 'uint8')
    """
    names = []
    for value in arguments:
        if type(value) is np.ndarray:
            flags = value.flags
            if not flags.c_contiguous or not flags.aligned:
                return None
            names.append(f"{value.dtype.str} {value.ndim} {'C' if flags.writeable else 'read-only'}")
        elif type(value) is int:
            if not -(2**63) <= value < 2**63:
                return None
            names.append("int64")
        elif type(value) in (bool, float) or (isinstance(value, np.generic) and value.dtype.name in _SCALARS):
            names.append({bool: "bool", float: "float64"}.get(type(value)) or value.dtype.name)
        else:
            return None
    return tuple(names)


def describe_types(types: Iterable[Any]) -> tuple[str, ...] | None:
    """Name types of numba in the same words; None for other types than arrays without gaps, numbers and bools."""
    names = []
    for kind in types:
        if type(kind).__name__ == "Array" and kind.layout == "C" and kind.aligned and str(kind.dtype) in _SCALARS:
            dtype = np.dtype(str(kind.dtype)).str
            names.append(f"{dtype} {kind.ndim} {'C' if kind.mutable else 'read-only'}")
        elif str(kind) in _SCALARS:
            names.append(str(kind))
        else:
            return None
    return tuple(names)


def extract_code(compiled: Any) -> StoredCode | None:
    """Return what numba has compiled in a form that needs no numba.

    None if the function calls numba's own functions, for example to create an array, or if its result is no number.
    """
    library, function = compiled.library, compiled.fndesc
    functions = list(library._final_module.functions)
    symbols = sorted(value.name for value in functions if value.is_declaration and value.name.startswith(_OF_NUMBA))
    called = {
        operand.name
        for value in functions
        if symbols and not value.name.startswith(_WRAPPERS)
        for block in value.blocks
        for instruction in block.instructions
        for operand in instruction.operands
    }
    returns = str(function.restype)
    if called & set(symbols) - {_UNCALLED} or returns not in (*_SCALARS, _NO_VALUE):
        return None
    return StoredCode(function.llvm_func_name, returns, symbols, library._get_compiled_object())


@cache
def describe_processor() -> str:
    """Describe what machine code depends on: llvmlite's answers are those from which numba compiles."""
    from llvmlite import binding  # noqa: PLC0415

    features = binding.get_host_cpu_features().flatten()
    return f"{binding.get_process_triple()} {binding.get_host_cpu_name()} {features}"


def can_load() -> bool:
    """Whether this is a system on which loading without numba was tried."""
    return sys.platform == "linux" and platform.python_implementation() == "CPython"


def _load(stored: StoredCode) -> int:
    """Place machine code in memory, for as long as the process lives; returns the address of its function."""
    from llvmlite import binding  # noqa: PLC0415

    with _lock:
        engine = _make_engine()
        for name in stored.uncalled:
            if binding.address_of_symbol(name) is None:  # any address will do
                binding.add_symbol(name, ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value)
        engine.add_object_file(binding.ObjectFileRef.from_data(stored.code))
        engine.finalize_object()
        address: int = engine.get_function_address(stored.symbol)
    return address


@cache
def _make_engine() -> Any:
    from llvmlite import binding  # noqa: PLC0415

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(jit=True, codemodel="jitdefault")
    return binding.create_mcjit_compiler(binding.parse_assembly(""), machine)


def _list_array_words(name: str) -> list[Any]:
    num_dimensions = int(name.split(" ")[1])
    owners, sizes, address = [ctypes.c_void_p] * 2, [ctypes.c_int64] * 2, [ctypes.c_void_p]
    return [*owners, *sizes, *address, *[ctypes.c_int64] * (2 * num_dimensions)]
