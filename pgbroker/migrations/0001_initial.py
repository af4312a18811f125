"""The engine's tables, policies, functions and guards. DDL is SQL; Django's state is kept beside it."""

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import pgbroker.models.triggers
from pgbroker.sql.operations import RunFile


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                RunFile("migrations/sql/0001_tables.up.sql", reverse="migrations/sql/0001_tables.down.sql"),
                RunFile("sql/policies/row_security.sql"),
                RunFile("sql/functions/uuid7_1.sql"),
                RunFile("sql/functions/ensure_partitions_1.sql"),
                RunFile("sql/functions/enqueue_values_1.sql"),
                RunFile("sql/functions/enqueue_references_1.sql"),
                RunFile("sql/functions/enqueue_entries_1.sql"),
                RunFile("sql/functions/look_ups_1.sql"),
                RunFile("sql/functions/references_1.sql"),
                RunFile("sql/functions/enqueue_order_1.sql"),
                RunFile("sql/functions/enqueue_links_1.sql"),
                RunFile("sql/functions/enqueue_steps_1.sql"),
                RunFile("sql/functions/enqueue_keys_1.sql"),
                RunFile("sql/functions/enqueue_many_1.sql"),
                RunFile("sql/functions/enqueue_plain_1.sql"),
                RunFile("sql/functions/enqueue_plain_many_1.sql"),
                RunFile("sql/functions/enqueue_linked_many_1.sql"),
                RunFile("sql/functions/enqueue.sql"),
                RunFile("sql/functions/revive_1.sql"),
                RunFile("sql/functions/decide_1.sql"),
                RunFile("sql/functions/finish_groups_1.sql"),
                RunFile("sql/functions/resolve_1.sql"),
                RunFile("sql/functions/edges_1.sql"),
                RunFile("sql/functions/run_groups_1.sql"),
                RunFile("sql/functions/reconcile_1.sql"),
                RunFile("sql/functions/cancel_group_1.sql"),
                RunFile("sql/functions/occurrences_1.sql"),
                RunFile("sql/functions/dispatch_1.sql"),
                RunFile("sql/functions/delete_queue_1.sql"),
                RunFile("sql/functions/enqueue_exhausted_1.sql"),
                RunFile("sql/functions/job_events_1.sql"),
                RunFile("migrations/sql/0001_partitions.up.sql"),
            ],
            state_operations=[
                migrations.CreateModel(
                    name="DeferredReference",
                    fields=[
                        ("id", models.BigAutoField(primary_key=True, serialize=False)),
                        ("dependent_id", models.UUIDField()),
                        ("tenant_id", models.CharField(max_length=63)),
                        ("group_name", models.TextField()),
                        ("job_name", models.TextField(null=True)),
                        (
                            "on_failure",
                            models.SmallIntegerField(
                                choices=[(0, "cancel"), (1, "block"), (2, "ignore")], default=0
                            ),
                        ),
                        ("deadline_at", models.DateTimeField()),
                        ("expired_at", models.DateTimeField(null=True)),
                        (
                            "created_at",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                    ],
                    options={
                        "db_table": 'pgbroker"."deferred_reference',
                        "base_manager_name": "objects",
                    },
                ),
                migrations.CreateModel(
                    name="EdgeCheck",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "transaction_id",
                                "id",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("transaction_id", models.BigIntegerField()),
                        ("id", models.BigIntegerField()),
                        ("tenant_id", models.CharField(max_length=63)),
                        (
                            "prerequisite_ids",
                            django.contrib.postgres.fields.ArrayField(
                                base_field=models.UUIDField(), size=None
                            ),
                        ),
                    ],
                    options={
                        "db_table": 'pgbroker"."edge_check',
                        "base_manager_name": "objects",
                    },
                ),
                migrations.CreateModel(
                    name="GraphTurn",
                    fields=[
                        ("tenant_id", models.CharField(max_length=63, primary_key=True, serialize=False)),
                        ("number", models.BigIntegerField(default=1)),
                    ],
                    options={
                        "db_table": 'pgbroker"."graph_turn',
                        "base_manager_name": "objects",
                    },
                ),
                migrations.CreateModel(
                    name="Idempotency",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "tenant_id",
                                "job_type_id",
                                "key",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("tenant_id", models.CharField(max_length=63)),
                        ("key", models.TextField()),
                        ("job_id", models.UUIDField()),
                        ("digest", models.BinaryField()),
                        ("scope", models.TextField(default="held")),
                        ("expires_at", models.DateTimeField(null=True)),
                        (
                            "created_at",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                    ],
                    options={
                        "verbose_name_plural": "idempotency keys",
                        "db_table": 'pgbroker"."idempotency',
                        "base_manager_name": "objects",
                    },
                ),
                migrations.CreateModel(
                    name="Job",
                    fields=[
                        ("id", models.UUIDField(primary_key=True, serialize=False)),
                        ("tenant_id", models.CharField(max_length=63)),
                        (
                            "status",
                            models.SmallIntegerField(
                                choices=[
                                    (0, "scheduled"),
                                    (1, "waiting"),
                                    (2, "ready"),
                                    (3, "running"),
                                    (4, "suspended"),
                                    (5, "blocked"),
                                    (10, "completed"),
                                    (11, "failed"),
                                    (12, "dead_letter"),
                                    (13, "cancelled"),
                                ]
                            ),
                        ),
                        ("priority", models.SmallIntegerField(default=0)),
                        ("ready_at", models.DateTimeField(null=True)),
                        ("available_at", models.DateTimeField(null=True)),
                        ("attempt_count", models.IntegerField(default=0)),
                        ("max_attempts", models.IntegerField(default=5)),
                        ("declared_attempts", models.IntegerField(default=5)),
                        ("crash_count", models.IntegerField(default=0)),
                        ("lease_token", models.BigIntegerField(default=0)),
                        ("worker_id", models.UUIDField(null=True)),
                        ("leased_at", models.DateTimeField(null=True)),
                        ("lease_expires_at", models.DateTimeField(null=True)),
                        ("cancel_requested_at", models.DateTimeField(null=True)),
                        ("deadline_at", models.DateTimeField(null=True)),
                        ("run_group_id", models.UUIDField(null=True)),
                        ("name", models.TextField(null=True)),
                        ("lane", models.TextField(null=True)),
                        (
                            "created_at",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                        ("finished_at", models.DateTimeField(null=True)),
                    ],
                    options={
                        "db_table": 'pgbroker"."job',
                        "permissions": [
                            ("retry_job", "Can retry and redrive jobs"),
                            ("cancel_job", "Can cancel jobs"),
                        ],
                        "base_manager_name": "objects",
                    },
                ),
                migrations.CreateModel(
                    name="JobCounter",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "job_type_id",
                                "queue_id",
                                "worker_id",
                                "bucket",
                                "fold",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("worker_id", models.UUIDField()),
                        ("bucket", models.DateTimeField()),
                        (
                            "fold",
                            models.SmallIntegerField(
                                choices=[(0, "Worker Minute"), (1, "Minute"), (2, "Hour"), (3, "Day")],
                                default=0,
                            ),
                        ),
                        ("done", models.BigIntegerField(default=0)),
                        ("retried", models.BigIntegerField(default=0)),
                        ("snoozed", models.BigIntegerField(default=0)),
                        ("failed", models.BigIntegerField(default=0)),
                        ("dead", models.BigIntegerField(default=0)),
                        ("cancelled", models.BigIntegerField(default=0)),
                        ("run_seconds", models.FloatField(default=0)),
                        ("wait_seconds", models.FloatField(default=0)),
                    ],
                    options={
                        "db_table": 'pgbroker"."job_counter',
                    },
                ),
                migrations.CreateModel(
                    name="JobDependency",
                    fields=[
                        ("id", models.BigAutoField(primary_key=True, serialize=False)),
                        ("dependent_id", models.UUIDField()),
                        ("prerequisite_id", models.UUIDField()),
                        (
                            "kind",
                            models.SmallIntegerField(
                                choices=[
                                    (0, "Job On Job"),
                                    (1, "Job On Group"),
                                    (2, "Group On Job"),
                                    (3, "Group On Group"),
                                ]
                            ),
                        ),
                        ("tenant_id", models.CharField(max_length=63)),
                        (
                            "on_failure",
                            models.SmallIntegerField(
                                choices=[(0, "cancel"), (1, "block"), (2, "ignore")], default=0
                            ),
                        ),
                        (
                            "outcome",
                            models.SmallIntegerField(
                                choices=[
                                    (0, ""),
                                    (10, "completed"),
                                    (11, "failed"),
                                    (12, "dead_letter"),
                                    (13, "cancelled"),
                                ],
                                default=0,
                            ),
                        ),
                        ("satisfied_at", models.DateTimeField(null=True)),
                        ("level", models.IntegerField(default=1)),
                        (
                            "created_at",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                    ],
                    options={
                        "verbose_name_plural": "job dependencies",
                        "db_table": 'pgbroker"."job_dependency',
                        "base_manager_name": "objects",
                    },
                ),
                migrations.CreateModel(
                    name="JobEvent",
                    fields=[
                        ("id", models.BigAutoField(primary_key=True, serialize=False)),
                        ("tenant_id", models.CharField(max_length=63)),
                        (
                            "event",
                            models.SmallIntegerField(
                                choices=[
                                    (0, "scheduled"),
                                    (1, "waiting"),
                                    (2, "ready"),
                                    (3, "running"),
                                    (4, "suspended"),
                                    (5, "blocked"),
                                    (10, "completed"),
                                    (11, "failed"),
                                    (12, "dead_letter"),
                                    (13, "cancelled"),
                                    (20, "cancel_requested"),
                                    (21, "on_exhausted"),
                                ]
                            ),
                        ),
                        (
                            "occurred_at",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                        ("metadata", models.JSONField(null=True)),
                    ],
                    options={
                        "db_table": 'pgbroker"."job_event',
                        "base_manager_name": "objects",
                    },
                ),
                migrations.CreateModel(
                    name="JobTag",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "tag",
                                "tenant_id",
                                "job_id",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("tag", models.TextField()),
                        ("tenant_id", models.CharField(max_length=63)),
                        ("job_id", models.UUIDField()),
                    ],
                    options={
                        "db_table": 'pgbroker"."job_tag',
                        "base_manager_name": "objects",
                    },
                ),
                migrations.CreateModel(
                    name="JobType",
                    fields=[
                        ("id", models.AutoField(primary_key=True, serialize=False)),
                        ("name", models.CharField(max_length=200)),
                        ("version", models.IntegerField(default=1)),
                        (
                            "aliases",
                            django.contrib.postgres.fields.ArrayField(
                                base_field=models.TextField(), default=list, size=None
                            ),
                        ),
                        ("defaults", models.JSONField(default=dict)),
                        (
                            "last_seen_at",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                    ],
                    options={
                        "db_table": 'pgbroker"."job_type',
                        "ordering": ["name"],
                    },
                ),
                migrations.CreateModel(
                    name="Leader",
                    fields=[
                        ("duty", models.TextField(primary_key=True, serialize=False)),
                        ("holder", models.UUIDField()),
                        ("name", models.TextField()),
                        ("epoch", models.BigIntegerField()),
                        ("since", models.DateTimeField()),
                        ("expires_at", models.DateTimeField()),
                    ],
                    options={
                        "db_table": 'pgbroker"."leader',
                    },
                ),
                migrations.CreateModel(
                    name="Pause",
                    fields=[
                        ("id", models.BigAutoField(primary_key=True, serialize=False)),
                        (
                            "kind",
                            models.CharField(
                                choices=[
                                    ("queue", "Queue"),
                                    ("job_type", "Job Type"),
                                    ("tenant", "Tenant"),
                                    ("queue_tenant", "Queue Tenant"),
                                ],
                                max_length=20,
                            ),
                        ),
                        ("tenant", models.CharField(max_length=63, null=True)),
                        (
                            "paused_at",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                        ("until", models.DateTimeField(null=True)),
                        ("by", models.CharField(default="", max_length=200)),
                        ("reason", models.TextField(default="")),
                    ],
                    options={
                        "db_table": 'pgbroker"."pause',
                    },
                ),
                migrations.CreateModel(
                    name="Queue",
                    fields=[
                        ("id", models.SmallAutoField(primary_key=True, serialize=False)),
                        ("name", models.CharField(max_length=63)),
                        (
                            "ageing_seconds",
                            models.FloatField(
                                blank=True,
                                help_text="One step of priority in seconds of waiting; empty: AGEING_SECONDS.",
                                null=True,
                            ),
                        ),
                        (
                            "lease_seconds",
                            models.FloatField(
                                blank=True,
                                help_text="How long a claim holds a job; empty: LEASE_SECONDS.",
                                null=True,
                            ),
                        ),
                        (
                            "created_at",
                            models.DateTimeField(
                                db_default=django.db.models.functions.datetime.Now(), editable=False
                            ),
                        ),
                    ],
                    options={
                        "db_table": 'pgbroker"."queue',
                        "ordering": ["name"],
                    },
                ),
                migrations.CreateModel(
                    name="QueuePriority",
                    fields=[
                        ("id", models.BigAutoField(primary_key=True, serialize=False)),
                        ("priority", models.SmallIntegerField()),
                    ],
                    options={
                        "db_table": 'pgbroker"."queue_priority',
                    },
                ),
                migrations.CreateModel(
                    name="QueueSample",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "queue_id",
                                "sampled_at",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        (
                            "sampled_at",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                        ("ready", models.BigIntegerField()),
                        ("scheduled", models.BigIntegerField()),
                        ("running", models.BigIntegerField()),
                        ("oldest_ready_seconds", models.FloatField(null=True)),
                        ("coarse", models.BooleanField(default=False)),
                    ],
                    options={
                        "db_table": 'pgbroker"."queue_sample',
                    },
                ),
                migrations.CreateModel(
                    name="RunGroup",
                    fields=[
                        ("id", models.UUIDField(primary_key=True, serialize=False)),
                        ("tenant_id", models.CharField(max_length=63)),
                        ("name", models.CharField(max_length=255)),
                        (
                            "state",
                            models.SmallIntegerField(
                                choices=[
                                    (0, "open"),
                                    (1, "sealed"),
                                    (10, "completed"),
                                    (11, "failed"),
                                    (13, "cancelled"),
                                ],
                                default=0,
                            ),
                        ),
                        ("tolerate_count", models.IntegerField(null=True)),
                        ("tolerate_percent", models.FloatField(null=True)),
                        ("level", models.IntegerField(default=0)),
                        ("on_completed", models.JSONField(null=True)),
                        ("on_failed", models.JSONField(null=True)),
                        ("completed_job_id", models.UUIDField(null=True)),
                        ("failed_job_id", models.UUIDField(null=True)),
                        ("callback_error", models.TextField(null=True)),
                        ("cancel_requested_at", models.DateTimeField(null=True)),
                        ("opened_in", models.BigIntegerField()),
                        (
                            "created_at",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                        ("sealed_at", models.DateTimeField(null=True)),
                        ("finished_at", models.DateTimeField(null=True)),
                    ],
                    options={
                        "db_table": 'pgbroker"."run_group',
                        "permissions": [
                            ("retry_rungroup", "Can retry the failed part of run groups"),
                            ("cancel_rungroup", "Can cancel run groups"),
                        ],
                        "base_manager_name": "objects",
                    },
                ),
                migrations.CreateModel(
                    name="Schedule",
                    fields=[
                        ("id", models.UUIDField(primary_key=True, serialize=False)),
                        ("tenant_id", models.CharField(max_length=63)),
                        ("name", models.CharField(max_length=200)),
                        ("expression", models.CharField(max_length=255)),
                        ("time_zone", models.CharField(max_length=100)),
                        ("template", models.JSONField()),
                        (
                            "ambiguous",
                            models.CharField(
                                choices=[
                                    (
                                        pgbroker.policy.cron.changes.Ambiguous["AUTO"],
                                        pgbroker.policy.cron.changes.Ambiguous["AUTO"],
                                    ),
                                    (
                                        pgbroker.policy.cron.changes.Ambiguous["ONCE"],
                                        pgbroker.policy.cron.changes.Ambiguous["ONCE"],
                                    ),
                                    (
                                        pgbroker.policy.cron.changes.Ambiguous["TWICE"],
                                        pgbroker.policy.cron.changes.Ambiguous["TWICE"],
                                    ),
                                ],
                                default="auto",
                                max_length=20,
                            ),
                        ),
                        (
                            "nonexistent",
                            models.CharField(
                                choices=[
                                    (
                                        pgbroker.policy.cron.changes.Nonexistent["AUTO"],
                                        pgbroker.policy.cron.changes.Nonexistent["AUTO"],
                                    ),
                                    (
                                        pgbroker.policy.cron.changes.Nonexistent["SKIP"],
                                        pgbroker.policy.cron.changes.Nonexistent["SKIP"],
                                    ),
                                    (
                                        pgbroker.policy.cron.changes.Nonexistent["NEXT_VALID"],
                                        pgbroker.policy.cron.changes.Nonexistent["NEXT_VALID"],
                                    ),
                                ],
                                default="auto",
                                max_length=20,
                            ),
                        ),
                        (
                            "misfire",
                            models.CharField(
                                choices=[
                                    (
                                        pgbroker.policy.misfire.Policy["SKIP"],
                                        pgbroker.policy.misfire.Policy["SKIP"],
                                    ),
                                    (
                                        pgbroker.policy.misfire.Policy["RUN_ONCE"],
                                        pgbroker.policy.misfire.Policy["RUN_ONCE"],
                                    ),
                                    (
                                        pgbroker.policy.misfire.Policy["CATCH_UP"],
                                        pgbroker.policy.misfire.Policy["CATCH_UP"],
                                    ),
                                ],
                                default="run_once",
                                max_length=20,
                            ),
                        ),
                        ("misfire_count", models.IntegerField(default=100)),
                        ("misfire_window_seconds", models.FloatField(default=604800)),
                        (
                            "overlap",
                            models.CharField(
                                choices=[
                                    (
                                        pgbroker.policy.overlap.Policy["ALLOW"],
                                        pgbroker.policy.overlap.Policy["ALLOW"],
                                    ),
                                    (
                                        pgbroker.policy.overlap.Policy["SKIP"],
                                        pgbroker.policy.overlap.Policy["SKIP"],
                                    ),
                                    (
                                        pgbroker.policy.overlap.Policy["BUFFER_ONE"],
                                        pgbroker.policy.overlap.Policy["BUFFER_ONE"],
                                    ),
                                    (
                                        pgbroker.policy.overlap.Policy["CANCEL_OTHER"],
                                        pgbroker.policy.overlap.Policy["CANCEL_OTHER"],
                                    ),
                                ],
                                default="allow",
                                max_length=20,
                            ),
                        ),
                        ("jitter_seconds", models.FloatField(default=0)),
                        ("starts_at", models.DateTimeField(blank=True, null=True)),
                        ("ends_at", models.DateTimeField(blank=True, null=True)),
                        ("enabled", models.BooleanField(default=True)),
                        ("disabled_reason", models.TextField(default="")),
                        ("paused_at", models.DateTimeField(null=True)),
                        ("paused_until", models.DateTimeField(null=True)),
                        ("paused_by", models.TextField(default="")),
                        ("pause_reason", models.TextField(default="")),
                        ("next_run_at", models.DateTimeField(null=True)),
                        (
                            "watermark",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                        ("buffered_for", models.DateTimeField(null=True)),
                        ("last_dispatched_for", models.DateTimeField(null=True)),
                        ("last_dispatched_at", models.DateTimeField(null=True)),
                        ("zone_rules", models.TextField(default="")),
                        ("declared", models.BooleanField(default=False)),
                        ("declared_by", models.TextField(default="")),
                        ("declaration", models.TextField(default="")),
                        ("revision", models.BigIntegerField(default=0)),
                        ("failure_count", models.IntegerField(default=0)),
                        ("failed_at", models.DateTimeField(null=True)),
                        ("error_code", models.TextField(null=True)),
                        ("error", models.TextField(null=True)),
                        ("forgotten_until", models.DateTimeField(null=True)),
                        (
                            "created_at",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                        (
                            "updated_at",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                    ],
                    options={
                        "db_table": 'pgbroker"."schedule',
                        "permissions": [
                            ("run_schedule", "Can run schedules now"),
                            ("pause_schedule", "Can pause and resume schedules"),
                            ("backfill_schedule", "Can backfill schedules"),
                        ],
                        "base_manager_name": "objects",
                    },
                ),
                migrations.CreateModel(
                    name="ScheduleDeclarer",
                    fields=[
                        ("project", models.TextField(primary_key=True, serialize=False)),
                        ("digest", models.TextField()),
                        (
                            "former",
                            django.contrib.postgres.fields.ArrayField(
                                base_field=models.TextField(), default=list, size=None
                            ),
                        ),
                        (
                            "since",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                        (
                            "seen_at",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                    ],
                    options={
                        "db_table": 'pgbroker"."schedule_declarer',
                    },
                ),
                migrations.CreateModel(
                    name="ScheduleRun",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "schedule_id",
                                "scheduled_for",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("scheduled_for", models.DateTimeField()),
                        ("tenant_id", models.CharField(max_length=63)),
                        (
                            "kind",
                            models.CharField(
                                choices=[("tick", "Tick"), ("run_now", "Run Now"), ("backfill", "Backfill")],
                                default="tick",
                                max_length=20,
                            ),
                        ),
                        (
                            "state",
                            models.CharField(
                                choices=[
                                    ("created", "Created"),
                                    ("skipped", "Skipped"),
                                    ("buffered", "Buffered"),
                                    ("failed", "Failed"),
                                    ("missed", "Missed"),
                                ],
                                max_length=20,
                            ),
                        ),
                        ("job_id", models.UUIDField(null=True)),
                        ("run_group_id", models.UUIDField(null=True)),
                        (
                            "created_at",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                        ("lateness_seconds", models.FloatField(null=True)),
                        ("error_code", models.TextField(null=True)),
                        ("error", models.TextField(null=True)),
                        ("seen_over", models.BooleanField(default=False)),
                    ],
                    options={
                        "db_table": 'pgbroker"."schedule_run',
                        "base_manager_name": "objects",
                    },
                ),
                migrations.CreateModel(
                    name="Unresolved",
                    fields=[
                        ("id", models.BigAutoField(primary_key=True, serialize=False)),
                        ("prerequisite_id", models.UUIDField()),
                        ("tenant_id", models.CharField(max_length=63)),
                        (
                            "not_before",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                    ],
                    options={
                        "verbose_name_plural": "unresolved",
                        "db_table": 'pgbroker"."unresolved',
                        "base_manager_name": "objects",
                    },
                ),
                migrations.CreateModel(
                    name="Worker",
                    fields=[
                        ("id", models.UUIDField(primary_key=True, serialize=False)),
                        ("name", models.TextField()),
                        ("host", models.TextField()),
                        ("pid", models.IntegerField()),
                        ("version", models.TextField()),
                        (
                            "queues",
                            django.contrib.postgres.fields.ArrayField(
                                base_field=models.TextField(), size=None
                            ),
                        ),
                        ("slots", models.IntegerField()),
                        ("running", models.IntegerField(default=0)),
                        ("held", models.IntegerField(default=0)),
                        (
                            "started_at",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                        (
                            "heartbeat_at",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                        ("expires_at", models.DateTimeField()),
                        ("draining_at", models.DateTimeField(null=True)),
                        ("stopped_at", models.DateTimeField(null=True)),
                    ],
                    options={
                        "db_table": 'pgbroker"."worker',
                        "ordering": ["-started_at"],
                    },
                ),
                migrations.CreateModel(
                    name="JobPayload",
                    fields=[
                        (
                            "job",
                            models.OneToOneField(
                                db_constraint=False,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                primary_key=True,
                                related_name="payload",
                                serialize=False,
                                to="pgbroker.job",
                            ),
                        ),
                        ("tenant_id", models.CharField(max_length=63)),
                        ("type_version", models.IntegerField(default=1)),
                        ("args", models.JSONField()),
                        ("args_body", models.TextField(null=True)),
                        ("options", models.JSONField(null=True)),
                        ("idempotency_key", models.TextField(null=True)),
                        ("idempotency_scope", models.TextField(null=True)),
                        ("window_seconds", models.FloatField(null=True)),
                        ("principal", models.TextField(null=True)),
                        ("correlation_id", models.TextField(null=True)),
                        ("traceparent", models.TextField(null=True)),
                        (
                            "tags",
                            django.contrib.postgres.fields.ArrayField(
                                base_field=models.TextField(), null=True, size=None
                            ),
                        ),
                    ],
                    options={
                        "db_table": 'pgbroker"."job_payload',
                        "base_manager_name": "objects",
                    },
                ),
                migrations.CreateModel(
                    name="JobState",
                    fields=[
                        (
                            "job",
                            models.OneToOneField(
                                db_constraint=False,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                primary_key=True,
                                related_name="state",
                                serialize=False,
                                to="pgbroker.job",
                            ),
                        ),
                        ("tenant_id", models.CharField(max_length=63)),
                        ("reason_code", models.TextField()),
                        ("reason", models.TextField(default="")),
                        ("by", models.TextField(default="")),
                        ("cause_id", models.UUIDField(null=True)),
                        (
                            "changed_at",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                    ],
                    options={
                        "db_table": 'pgbroker"."job_state',
                        "base_manager_name": "objects",
                    },
                ),
                migrations.CreateModel(
                    name="Execution",
                    fields=[
                        ("id", models.BigAutoField(primary_key=True, serialize=False)),
                        ("tenant_id", models.CharField(max_length=63)),
                        ("attempt_no", models.IntegerField()),
                        (
                            "state",
                            models.SmallIntegerField(
                                choices=[
                                    (1, "completed"),
                                    (2, "failed"),
                                    (3, "timed_out"),
                                    (4, "cancelled"),
                                    (5, "lease_expired"),
                                    (6, "crashed"),
                                    (7, "released"),
                                    (8, "snoozed"),
                                    (9, "suspended"),
                                ]
                            ),
                        ),
                        ("worker_id", models.UUIDField(null=True)),
                        ("started_at", models.DateTimeField(null=True)),
                        (
                            "completed_at",
                            models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                        ),
                        ("duration_seconds", models.FloatField(null=True)),
                        ("error_code", models.TextField(null=True)),
                        ("error", models.TextField(null=True)),
                        ("traceback", models.TextField(null=True)),
                        ("result", models.JSONField(null=True)),
                        ("result_body", models.TextField(null=True)),
                        ("log_tail", models.TextField(null=True)),
                        (
                            "job",
                            models.ForeignKey(
                                db_constraint=False,
                                db_index=False,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="executions",
                                to="pgbroker.job",
                            ),
                        ),
                    ],
                    options={
                        "db_table": 'pgbroker"."execution',
                        "base_manager_name": "objects",
                    },
                ),
                migrations.AddField(
                    model_name="jobevent",
                    name="job",
                    field=models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="events",
                        to="pgbroker.job",
                    ),
                ),
                migrations.AddField(
                    model_name="jobcounter",
                    name="job_type",
                    field=models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        to="pgbroker.jobtype",
                    ),
                ),
                migrations.AddField(
                    model_name="job",
                    name="job_type",
                    field=models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        to="pgbroker.jobtype",
                    ),
                ),
                migrations.AddField(
                    model_name="idempotency",
                    name="job_type",
                    field=models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        to="pgbroker.jobtype",
                    ),
                ),
                migrations.AddField(
                    model_name="pause",
                    name="job_type",
                    field=models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        to="pgbroker.jobtype",
                    ),
                ),
                migrations.AddField(
                    model_name="pause",
                    name="queue",
                    field=models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        to="pgbroker.queue",
                    ),
                ),
                migrations.AddField(
                    model_name="jobcounter",
                    name="queue",
                    field=models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        to="pgbroker.queue",
                    ),
                ),
                migrations.AddField(
                    model_name="job",
                    name="queue",
                    field=models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        to="pgbroker.queue",
                    ),
                ),
                migrations.AddField(
                    model_name="queuepriority",
                    name="queue",
                    field=models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        to="pgbroker.queue",
                    ),
                ),
                migrations.AddField(
                    model_name="queuesample",
                    name="queue",
                    field=models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        to="pgbroker.queue",
                    ),
                ),
                migrations.AddField(
                    model_name="schedulerun",
                    name="schedule",
                    field=models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        to="pgbroker.schedule",
                    ),
                ),
            ],
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="jobdependency",
            trigger=pgtrigger.compiler.Trigger(
                name="stays_the_edge_it_is",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    condition="WHEN (OLD.satisfied_at IS NOT NULL AND NEW.satisfied_at IS DISTINCT FROM OLD.satisfied_at OR NEW.dependent_id <> OLD.dependent_id OR NEW.prerequisite_id <> OLD.prerequisite_id OR NEW.kind <> OLD.kind OR NEW.tenant_id <> OLD.tenant_id OR NEW.on_failure <> OLD.on_failure)",
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: an edge is satisfied once, and what it joins never changes', HINT = 'Enqueue a new job instead.';",
                    hash="75bb0a5cc581e6760e7f81c5059575c4d1d3efed",
                    operation="UPDATE",
                    pgid="pgtrigger_stays_the_edge_it_is_edb32",
                    table='pgbroker"."job_dependency',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="jobdependency",
            trigger=pgtrigger.compiler.Trigger(
                name="kept_with_its_dependent",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    func="IF NOT EXISTS (SELECT FROM pgbroker.job WHERE job.id = OLD.dependent_id) AND NOT EXISTS (SELECT FROM pgbroker.run_group WHERE run_group.id = OLD.dependent_id) THEN RETURN OLD; END IF; RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: an edge is kept as long as its dependent', HINT = 'Unblock the job: manage.py broker_jobs unblock ID.';",
                    hash="1121d6fd0aaca4615f973fe8ce753f1a4b4e26d6",
                    operation="DELETE",
                    pgid="pgtrigger_kept_with_its_dependent_042ae",
                    table='pgbroker"."job_dependency',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="jobtag",
            trigger=pgtrigger.compiler.Trigger(
                name="written_once",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: job_tag is written once', HINT = 'Enqueue a new job instead.';",
                    hash="e75963ab48f9e7e5b71947eb9a4b16e041e64c1a",
                    operation="UPDATE",
                    pgid="pgtrigger_written_once_0a7c0",
                    table='pgbroker"."job_tag',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="jobtag",
            trigger=pgtrigger.compiler.Trigger(
                name="kept_with_its_job",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    func="IF NOT EXISTS (SELECT FROM pgbroker.job WHERE job.id = OLD.job_id) THEN RETURN OLD; END IF; RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: a job_tag is kept as long as its job', HINT = 'Delete the job first, once it is over.';",
                    hash="1c33f1737195b6b98f5f3ca3829ce1ce78fe51af",
                    operation="DELETE",
                    pgid="pgtrigger_kept_with_its_job_3e26e",
                    table='pgbroker"."job_tag',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="jobtype",
            trigger=pgtrigger.compiler.Trigger(
                name="refuse_delete",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: a job_type is never deleted', HINT = 'Jobs and history refer to it. Pause it instead.';",
                    hash="64da20d27ea2afa699090b66088ad1d8a0b38cfd",
                    operation="DELETE",
                    pgid="pgtrigger_refuse_delete_56440",
                    table='pgbroker"."job_type',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="jobtype",
            trigger=pgtrigger.compiler.Trigger(
                name="keeps_its_name",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    condition="WHEN (NEW.id <> OLD.id OR NEW.name <> OLD.name)",
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: a job_type keeps its number and its name', HINT = 'Jobs refer to the number, code to the name. Declare the new name beside it.';",
                    hash="750032cad1e3f3a9eec1bdbe5203b4e616b1c8b6",
                    operation="UPDATE",
                    pgid="pgtrigger_keeps_its_name_ddd86",
                    table='pgbroker"."job_type',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="leader",
            trigger=pgtrigger.compiler.Trigger(
                name="epoch_only_rises",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    func="IF TG_OP = 'UPDATE' AND NEW.duty = OLD.duty AND NEW.epoch >= OLD.epoch THEN RETURN NEW; END IF; RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: the epoch of a duty only rises', HINT = 'Let the lease run out: the next leader takes it by itself.';",
                    hash="00216a73aac8c275afab8ca9c80a1f247124b8f2",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_epoch_only_rises_d7868",
                    table='pgbroker"."leader',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="queue",
            trigger=pgtrigger.compiler.Trigger(
                name="deleted_by_its_verb",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    func="IF pgbroker.deletes_queue_1(OLD.id) THEN RETURN OLD; END IF; RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: jobs may refer to a queue by its number', HINT = 'Delete it with: manage.py broker_queues delete NAME.';",
                    hash="c73864d89e77b04dcb5b2878176572e26bf77af0",
                    operation="DELETE",
                    pgid="pgtrigger_deleted_by_its_verb_8112d",
                    table='pgbroker"."queue',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="queue",
            trigger=pgtrigger.compiler.Trigger(
                name="keeps_its_name",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    condition="WHEN (NEW.id <> OLD.id OR NEW.name <> OLD.name)",
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: a queue keeps its number and its name', HINT = 'Jobs refer to the number, code to the name. Declare the new name beside it.';",
                    hash="b07c1a9460151d1084593a41018c0dc415ec047c",
                    operation="UPDATE",
                    pgid="pgtrigger_keeps_its_name_5c667",
                    table='pgbroker"."queue',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="rungroup",
            trigger=pgtrigger.compiler.Trigger(
                name="legal_group_state",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    condition="WHEN (OLD.state <> NEW.state AND 100 * OLD.state + NEW.state <> ALL ('{1,110,111,113,1101,1301}'::int[]))",
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: no verb makes this change of state', HINT = 'Change groups through the verbs: seal, resolve, retry.';",
                    hash="e74a71bf747bab71ae338b87c3eba4fd81813354",
                    operation='UPDATE OF "state"',
                    pgid="pgtrigger_legal_group_state_92183",
                    table='pgbroker"."run_group',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="rungroup",
            trigger=pgtrigger.compiler.Trigger(
                name="stays_the_group_it_is",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    condition="WHEN (NEW.id <> OLD.id OR NEW.tenant_id <> OLD.tenant_id OR NEW.name <> OLD.name OR NEW.created_at <> OLD.created_at)",
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: id, tenant, name and creation of a run group never change', HINT = 'Open a new group instead.';",
                    hash="a541cca139c4466e4bdadeaa9a4bed40b9693faa",
                    operation='UPDATE OF "id", "tenant_id", "name", "created_at"',
                    pgid="pgtrigger_stays_the_group_it_is_53413",
                    table='pgbroker"."run_group',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="rungroup",
            trigger=pgtrigger.compiler.Trigger(
                name="kept_with_its_members",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    func="IF NOT EXISTS (SELECT FROM pgbroker.job WHERE job.run_group_id = OLD.id) AND NOT EXISTS (SELECT FROM pgbroker.job_dependency AS edge WHERE edge.prerequisite_id = OLD.id AND edge.satisfied_at IS NULL) THEN RETURN OLD; END IF; RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: a run group is kept as long as its jobs, and as long as others wait for it', HINT = 'Delete its jobs first, once they are over.';",
                    hash="ef8b6648e7d3b1710a5deaeea54eceb666815d91",
                    operation="DELETE",
                    pgid="pgtrigger_kept_with_its_members_a91a1",
                    table='pgbroker"."run_group',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="schedule",
            trigger=pgtrigger.compiler.Trigger(
                name="stays_the_schedule_it_is",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    condition="WHEN (NEW.revision < OLD.revision OR NEW.id <> OLD.id OR NEW.tenant_id <> OLD.tenant_id OR NEW.name <> OLD.name OR NEW.created_at <> OLD.created_at)",
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: id, tenant, name and creation of a schedule never change, and its revision only rises', HINT = 'Save another schedule, and disable this one.';",
                    hash="a4a39c4fb08266227b88579f5c8c398f75bcc9ed",
                    operation="UPDATE",
                    pgid="pgtrigger_stays_the_schedule_it_is_5ad30",
                    table='pgbroker"."schedule',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="jobpayload",
            trigger=pgtrigger.compiler.Trigger(
                name="written_once",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: job_payload is written once', HINT = 'Enqueue a new job instead.';",
                    hash="92806a995f1223120ecaa54fa7c80b4e9ca3e84d",
                    operation="UPDATE",
                    pgid="pgtrigger_written_once_3d65d",
                    table='pgbroker"."job_payload',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="jobpayload",
            trigger=pgtrigger.compiler.Trigger(
                name="kept_with_its_job",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    func="IF NOT EXISTS (SELECT FROM pgbroker.job WHERE job.id = OLD.job_id) THEN RETURN OLD; END IF; RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: a job_payload is kept as long as its job', HINT = 'Delete the job first, once it is over.';",
                    hash="d64a51b5922d8baaec079c6938a06712bed09596",
                    operation="DELETE",
                    pgid="pgtrigger_kept_with_its_job_16f12",
                    table='pgbroker"."job_payload',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="execution",
            trigger=pgtrigger.compiler.Trigger(
                name="append_only",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: execution is append-only', HINT = 'History leaves by retention, a partition at a time.';",
                    hash="c576677281eb5f1816db341f4407171175c998ee",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_b7f57",
                    table='pgbroker"."execution',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="jobevent",
            trigger=pgtrigger.compiler.Trigger(
                name="append_only",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: job_event is append-only', HINT = 'History leaves by retention, a partition at a time.';",
                    hash="6f2bf7164f8c43c6fce23331dd7f4967786ce666",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_b6356",
                    table='pgbroker"."job_event',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="job",
            trigger=pgtrigger.compiler.Trigger(
                name="legal_entry",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    condition="WHEN (NEW.status NOT IN (0, 1, 2))",
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: a job begins scheduled, waiting or ready', HINT = 'Enqueue it: pgbroker.enqueue(...).';",
                    hash="290d05161b68d24f8e4a37f425d980e720a9617c",
                    operation="INSERT",
                    pgid="pgtrigger_legal_entry_22766",
                    table='pgbroker"."job',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="job",
            trigger=pgtrigger.compiler.Trigger(
                name="legal_transition",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    condition="WHEN (OLD.status <> NEW.status AND 100 * OLD.status + NEW.status <> ALL ('{1,2,11,13,100,102,105,111,113,201,203,211,213,300,302,304,310,311,312,313,402,411,413,500,501,502,511,513,1100,1101,1102,1200,1201,1202,1300,1301,1302,1305}'::int[]))",
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: no verb makes this change of status', HINT = 'Change jobs through the verbs: promote, add_edge, resolve, claim, release, settle, reap, wake, expire, cancel, retry, unblock.';",
                    hash="6dfd85c1de154a893f6f55356f681855a5b32f6c",
                    operation='UPDATE OF "status"',
                    pgid="pgtrigger_legal_transition_64cbe",
                    table='pgbroker"."job',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="job",
            trigger=pgtrigger.compiler.Trigger(
                name="numbers_only_rise",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    condition="WHEN (NEW.lease_token < OLD.lease_token OR NEW.attempt_count < OLD.attempt_count OR NEW.max_attempts < OLD.max_attempts OR NEW.crash_count < OLD.crash_count)",
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: counts and tokens only rise', HINT = 'Enqueue a new job instead.';",
                    hash="900d32a960efbd75fe1d7a5367549a364f2b683e",
                    operation='UPDATE OF "lease_token", "attempt_count", "max_attempts", "crash_count"',
                    pgid="pgtrigger_numbers_only_rise_49df1",
                    table='pgbroker"."job',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="job",
            trigger=pgtrigger.compiler.Trigger(
                name="stays_the_job_it_is",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    condition="WHEN (NEW.id <> OLD.id OR NEW.tenant_id <> OLD.tenant_id OR NEW.queue_id <> OLD.queue_id OR NEW.job_type_id <> OLD.job_type_id OR NEW.priority <> OLD.priority OR NEW.created_at <> OLD.created_at OR NEW.declared_attempts <> OLD.declared_attempts)",
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: id, tenant, queue, type, priority, creation and declared attempts of a job never change', HINT = 'Enqueue a new job instead.';",
                    hash="c3bc0e0e08a2d0e77769c9c791f43f21075f2d95",
                    operation='UPDATE OF "id", "tenant_id", "queue_id", "job_type_id", "priority", "created_at", "declared_attempts"',
                    pgid="pgtrigger_stays_the_job_it_is_4a619",
                    table='pgbroker"."job',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="job",
            trigger=pgtrigger.compiler.Trigger(
                name="stays_in_its_group",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    condition="WHEN (NEW.run_group_id IS DISTINCT FROM OLD.run_group_id OR NEW.name IS DISTINCT FROM OLD.name)",
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: the run group of a job, and its name there, never change', HINT = 'Enqueue a new job instead.';",
                    hash="63689d5eb2db0b43d7aed1ecf61842595e0233c0",
                    operation='UPDATE OF "run_group_id", "name"',
                    pgid="pgtrigger_stays_in_its_group_e5c14",
                    table='pgbroker"."job',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="job",
            trigger=pgtrigger.compiler.Trigger(
                name="ended_is_final",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    condition="WHEN (OLD.status >= 10 AND NEW.status = OLD.status)",
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: a job that has ended does not change', HINT = 'Retry it: manage.py broker_jobs retry ID.';",
                    hash="0e78d1038bb9224061aa9956b066ba136de374c7",
                    operation="UPDATE",
                    pgid="pgtrigger_ended_is_final_00af7",
                    table='pgbroker"."job',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="job",
            trigger=pgtrigger.compiler.Trigger(
                name="refuse_live_delete",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    condition="WHEN (OLD.status < 10)",
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: a live job is never deleted', HINT = 'Cancel it: manage.py broker_jobs cancel ID.';",
                    hash="f7a39f93b6a5740c560777b41af72f5f9ca550bb",
                    operation="DELETE",
                    pgid="pgtrigger_refuse_live_delete_f2fd6",
                    table='pgbroker"."job',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="job",
            trigger=pgtrigger.compiler.Trigger(
                name="waited_for",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    func="IF NOT EXISTS (SELECT FROM pgbroker.job_dependency AS edge WHERE edge.prerequisite_id = OLD.id AND edge.satisfied_at IS NULL) THEN RETURN OLD; END IF; RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: other jobs still look at how this job ended', HINT = 'Delete the jobs that depend on it first, or unblock them.';",
                    hash="10acf0034dbb420c2dab100bc1716604e044d609",
                    operation="DELETE",
                    pgid="pgtrigger_waited_for_92f29",
                    table='pgbroker"."job',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="queuepriority",
            trigger=pgtrigger.compiler.Trigger(
                name="only_added",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: a row of queue_priority is not changed', HINT = 'A claim sees the ready jobs of the priorities that stand here. Leave the row; it costs nothing.';",
                    hash="22bb5eb4e81b66ccb49ad3b15e296d47e89a5aa9",
                    operation="UPDATE",
                    pgid="pgtrigger_only_added_bf224",
                    table='pgbroker"."queue_priority',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="queuepriority",
            trigger=pgtrigger.compiler.Trigger(
                name="kept_with_its_queue",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    func="IF NOT EXISTS (SELECT FROM pgbroker.queue WHERE queue.id = OLD.queue_id) THEN RETURN OLD; END IF; RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: a row of queue_priority is kept as long as its queue', HINT = 'A claim sees the ready jobs of the priorities that stand here. Leave the row; it costs nothing.';",
                    hash="7ae84fdbe79086bac4946560f874f44a01f0b81c",
                    operation="DELETE",
                    pgid="pgtrigger_kept_with_its_queue_f37e7",
                    table='pgbroker"."queue_priority',
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="schedulerun",
            trigger=pgtrigger.compiler.Trigger(
                name="created_is_final",
                sql=pgbroker.models.triggers.SchemaUpsertTriggerSql(
                    condition="WHEN (OLD.state = 'created' OR NEW.schedule_id <> OLD.schedule_id OR NEW.tenant_id <> OLD.tenant_id OR NEW.scheduled_for <> OLD.scheduled_for)",
                    func="RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = 'pgbroker: an occurrence that was created stays as it is', HINT = 'Run the schedule now, or retry the job.';",
                    hash="572186afcd41b4a156e89f07d9cb354eac7e38db",
                    operation='UPDATE OF "schedule_id", "tenant_id", "scheduled_for", "kind", "state", "job_id", "run_group_id", "created_at", "lateness_seconds", "error_code", "error"',
                    pgid="pgtrigger_created_is_final_77a88",
                    table='pgbroker"."schedule_run',
                    when="BEFORE",
                ),
            ),
        ),
    ]
