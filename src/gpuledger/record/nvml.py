"""Readings of NVML, the library with which NVIDIA's driver tells energy, clocks and temperature, through ctypes.

Source: NVML API Reference Guide.
"""

import ctypes
from ctypes import byref, c_char_p, c_uint, c_ulonglong, c_void_p

from gpuledger.errors import InputError

_NAME = "libnvidia-ml.so.1"
#: Numbers in NVML's header: the SM's clock, the GPU's temperature.
_CLOCK_SM, _TEMPERATURE_GPU = 1, 0


class Nvml:
    """One GPU, by its UUID without the word before it.

    Raises
    ------
    InputError
        The library is missing, or refuses a call.
    """

    def __init__(self, uuid: str):
        try:
            self._library = ctypes.CDLL(_NAME)
        except OSError:
            remedy = "install the NVIDIA driver; a container needs its library, too"
            raise InputError("NVML", "", f"{_NAME} cannot be loaded", remedy) from None
        self._library.nvmlErrorString.restype = c_char_p
        self._call("nvmlInit_v2")
        self._device = c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", c_char_p(f"GPU-{uuid}".encode()), byref(self._device))

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
            problem = (self._library.nvmlErrorString(status) or b"").decode("utf-8", "replace") or f"status {status}"
            raise InputError("NVML", name, problem, "record a whole GPU, Volta or newer, with its driver's own library")
