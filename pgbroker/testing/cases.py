"""For `unittest`: what a test case needs that commits."""

from typing import TYPE_CHECKING, Any

from django.db import connections

from pgbroker.conf import settings
from pgbroker.testing.rows import flush

if TYPE_CHECKING:
    from django.test import TransactionTestCase as _TestCase
else:
    _TestCase = object


class FlushMixin(_TestCase):
    """
    Empty pgbroker's tables after each test; mix it into a `TransactionTestCase` or `LiveServerTestCase`.

    It goes before them: `class OrderTests(FlushMixin, TransactionTestCase)`. It keeps to the aliases in
    `databases`. Under pytest the plugin does the same without it.
    """

    def run(self, result: Any = None) -> Any:
        """Run the test; the first clean-up to be added is the last to be called."""
        self.addCleanup(self._flush_broker)
        return super().run(result)

    def _flush_broker(self) -> None:
        for alias in settings().DATABASES:
            allowed = self.databases == "__all__" or alias in self.databases
            # Inside of a transaction it is a TestCase, which takes everything back itself.
            if allowed and not connections[alias].in_atomic_block:
                flush(using=alias)
