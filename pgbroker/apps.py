"""What `INSTALLED_APPS += ["pgbroker"]` sets in motion."""

# At module level: it teaches Django the Meta option `triggers` before any model is loaded, so that a
# host project need not list pgtrigger itself.
import pgtrigger.apps
from django.apps import AppConfig, apps


class PgBrokerConfig(AppConfig):
    """The app: labels, triggers and subscribers."""

    name = "pgbroker"
    label = "pgbroker"
    verbose_name = "pgbroker"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Finish what django-pgtrigger needs when it is not installed itself."""
        if not apps.is_installed("pgtrigger"):
            pgtrigger.apps.patch_migrations()
            pgtrigger.apps.patch_schema_editor()
            pgtrigger.apps.register_triggers_from_meta()
