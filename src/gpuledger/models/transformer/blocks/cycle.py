"""Layers that a token passes several times."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cycle:
    """Layers of the checkpoint that a token passes several times."""

    start: int
    length: int
    times: int
    normed: bool = False  # the model's last norm also ends every cycle, and a gate may end them early (Ouro)

    def order(self, layers: int) -> list[int]:
        """Return the layers of the checkpoint, of so many, in the order in which a token passes them."""
        end = self.start + self.length
        return [*range(end), *([*range(self.start, end)] * (self.times - 1)), *range(end, layers)]

    def stored(self, number: int) -> int:
        """Return which layer of the checkpoint is the one of a number in that order."""
        within = number - self.start
        if within < self.length:
            return number
        return self.start + within % self.length if self.again(number) else number - (self.times - 1) * self.length

    def again(self, number: int) -> bool:
        """Whether a token passed the layer before."""
        return self.length <= number - self.start < self.times * self.length
