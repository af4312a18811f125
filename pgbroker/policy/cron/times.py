"""The times of a day at which an expression fires, numbered in order. Pure."""

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Times:
    """
    Each of the *minutes* of each of the *hours*, both in order.

    A time is a number of seconds since the day began. The list itself, up to 1,440 long, is never made.
    """

    hours: tuple[int, ...]
    minutes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.hours) * len(self.minutes)

    def at(self, index: int) -> int:
        """Return the time of that number."""
        hour, minute = divmod(index, len(self.minutes))
        return self.hours[hour] * 3600 + self.minutes[minute] * 60

    def before(self, second: int) -> int:
        """Count the times earlier than *second*, so: the number of the first that is not."""
        if second <= 0:
            return 0
        hour, rest = divmod(second, 3600)
        whole = bisect_left(self.hours, hour)
        count = whole * len(self.minutes)
        if whole < len(self.hours) and self.hours[whole] == hour:
            count += bisect_left(self.minutes, -(-rest // 60))
        return count


MIDNIGHT = Times((0,), (0,))
