"""The first tables."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Orders."""

    initial = True
    operations = [  # noqa: RUF012 - as Django writes it
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=100, unique=True)),
                ("state", models.CharField(default="new", max_length=100)),
            ],
        )
    ]
