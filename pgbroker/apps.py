"""What `INSTALLED_APPS += ["pgbroker"]` sets in motion."""

from importlib import import_module

# At module level: it teaches Django the Meta option `triggers` before any model is loaded, so that a
# host project need not list pgtrigger itself.
import pgtrigger.apps
from django.apps import AppConfig, apps
from django.core.signals import setting_changed
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from pgbroker import conf, scoping


class PgBrokerConfig(AppConfig):
    """The app: labels, triggers and subscribers."""

    name = "pgbroker"
    label = "pgbroker"
    verbose_name = "pgbroker"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect what must hear of connections and settings, and finish django-pgtrigger's set-up."""
        from pgbroker import declared_rows

        connection_created.connect(scoping.carry_scope, dispatch_uid="pgbroker.carry_scope")
        setting_changed.connect(conf.forget, dispatch_uid="pgbroker.forget_settings")
        post_migrate.connect(
            declared_rows.declare_after_migrate, sender=self, dispatch_uid="pgbroker.declare"
        )
        # Jobs register when their module is imported, as signals and admin classes do.
        autodiscover_modules("jobs", "tasks")
        import_module("pgbroker.checks")
        if apps.is_installed("django_prometheus"):
            # Then the project has a page of metrics, and ours belong on it.
            from pgbroker.metrics import serve_process

            serve_process()
        if not apps.is_installed("pgtrigger"):
            pgtrigger.apps.patch_migrations()
            pgtrigger.apps.patch_schema_editor()
            pgtrigger.apps.register_triggers_from_meta()
