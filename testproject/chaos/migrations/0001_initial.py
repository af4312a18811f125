"""The tables of effects, and of what has been repaired."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Effect",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("job_id", models.UUIDField()),
                ("lease_token", models.BigIntegerField()),
                ("attempt_no", models.IntegerField()),
                ("worker_id", models.UUIDField()),
            ],
            options={"ordering": ["id"]},
        ),
        migrations.CreateModel(
            name="Repaired",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("graph", models.CharField(max_length=100, unique=True)),
            ],
        ),
    ]
