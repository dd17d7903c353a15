"""Readings of NVML, the library with which NVIDIA's driver tells energy, clocks and temperature, through ctypes.

Source: NVML API Reference Guide.
"""

import ctypes
from ctypes import byref, c_char_p, c_uint, c_ulonglong, c_void_p

from gpuledger.errors import InputError

_NAMES = ("libnvidia-ml.so.1", "libnvidia-ml.so")
#: Numbers in NVML's header: the SM's clock, the GPU's temperature.
_CLOCK_SM, _TEMPERATURE_GPU = 1, 0


class Nvml:
    """One GPU, by its UUID with or without the word before it.

    Raises
    ------
    InputError
        The library is missing, or refuses a call.
    """

    def __init__(self, uuid: str):
        self._library = _load()
        self._call("nvmlInit_v2")
        self._device = c_void_p()
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        self._call("nvmlDeviceGetHandleByUUID", c_char_p(name.encode()), byref(self._device))

    def energy_mj(self) -> int:
        """Return the energy since the driver was loaded (mJ); the counter advances some ten times a second."""
        found = c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._device, byref(found))
        return found.value

    def clock_mhz(self) -> int:
        """Return the SM clock (MHz)."""
        return self._number("nvmlDeviceGetClockInfo", _CLOCK_SM)

    def temperature_c(self) -> int:
        """Return the GPU's temperature (°C)."""
        return self._number("nvmlDeviceGetTemperature", _TEMPERATURE_GPU)

    def _number(self, name: str, which: int) -> int:
        found = c_uint()
        self._call(name, self._device, c_uint(which), byref(found))
        return found.value

    def _call(self, name: str, *arguments: object) -> None:
        if status := getattr(self._library, name)(*arguments):
            explain = self._library.nvmlErrorString
            explain.restype = c_char_p
            problem = (explain(status) or b"").decode("utf-8", "replace") or f"status {status}"
            raise InputError("NVML", name, problem, "record on a whole GPU, with the driver's own NVML")


def _load() -> ctypes.CDLL:
    for name in _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise InputError("NVML", "", "libnvidia-ml cannot be loaded", "install the NVIDIA driver; containers need it, too")
