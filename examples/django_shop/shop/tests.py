"""``python manage.py test``: jobs in memory, run in the test's own transaction."""
# ruff: noqa: S101 - asserting is what tests do

from django.test import TestCase

from ergon_framework.integrations.django import app
from ergon_framework.testing import Sandbox
from shop.models import Order


class OrderTest(TestCase):
    """What becomes of an order."""

    def setUp(self) -> None:
        """Keep the jobs of this project in memory."""
        self.ergon = self.enterContext(Sandbox())
        self.ergon.use(app)

    def test_an_order_is_shipped(self) -> None:
        """Its jobs are enqueued when it is committed, and not before."""
        with self.captureOnCommitCallbacks(execute=True):
            self.client.post("/orders/pie")
            assert self.ergon.drain().completed == 0
        self.ergon.drain(raises=True)
        assert Order.objects.get().state == "shipped"

    def test_an_order_in_one_transaction(self) -> None:
        """Its job is there with it."""
        self.client.post("/orders/pie/safe")
        assert self.ergon.drain(raises=True).completed == 1
        assert Order.objects.get().state == "shipped"
