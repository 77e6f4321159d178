"""When steps end, though the host looks late: from what the device's own clock says lies between their ends.

Pure and standard library only, as all of this folder. With asynchronous scheduling an engine takes a step's output after it has
launched the next one. Where that launch takes longer than the step, as of a step with prompts after one of decodes, the host
finds the step ended long since, and charges it with what the launch took. The device tells how much of its time has passed from
one end to the next, but nothing of the host's clock. What lies between the two clocks is the least of what was found, since the
host can look late and never early; clocks that drift apart are followed slowly.
"""

from math import inf

DRIFT = (
    2e-4  # of the time that passes: more than two clocks of one machine drift apart, less than would matter to a step
)


class DeviceClock:
    """Told of every step's end in turn, in the host's seconds and the device's."""

    def __init__(self) -> None:
        self._device_s = 0.0  # that have passed on its clock
        self._apart_s = inf  # host's clock less the device's

    def ended_s(self, now_s: float, since_last_s: float | None) -> float:
        """Return when the step really ended, by the host's clock.

        Args:
            now_s: when the host looks.
            since_last_s: that passed on the device's clock since the end of the step before; None: nobody knows, as for the
                first step or where no device keeps the time, and ``now_s`` is taken for the end.

        Returns:
            A time up to ``now_s``.
        """
        if since_last_s is None:
            self._apart_s = now_s - self._device_s
            return now_s
        self._device_s += since_last_s
        self._apart_s = min(now_s - self._device_s, self._apart_s + DRIFT * since_last_s)
        return self._device_s + self._apart_s
