"""What `INSTALLED_APPS += ["pgbroker"]` sets in motion."""

# At module level: it teaches Django the Meta option `triggers` before any model is loaded, so that a
# host project need not list pgtrigger itself.
import pgtrigger.apps
from django.apps import AppConfig, apps
from django.db.backends.signals import connection_created
from django.core.signals import setting_changed

from pgbroker import conf, db


class PgBrokerConfig(AppConfig):
    """The app: labels, triggers and subscribers."""

    name = "pgbroker"
    label = "pgbroker"
    verbose_name = "pgbroker"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect what must hear of connections and settings, and finish django-pgtrigger's set-up."""
        connection_created.connect(db.carry_scope, dispatch_uid="pgbroker.carry_scope")
        setting_changed.connect(conf.forget, dispatch_uid="pgbroker.forget_settings")
        if not apps.is_installed("pgtrigger"):
            pgtrigger.apps.patch_migrations()
            pgtrigger.apps.patch_schema_editor()
            pgtrigger.apps.register_triggers_from_meta()
