"""Handlers of jobs: this module is imported when Django starts."""

from ergon_framework.integrations.django import app
from shop.models import Order


@app.job(attempts=5, timeout=30)
def ship(order_id: int) -> str:
    """Ship an order that is in the database by now."""
    Order.objects.filter(pk=order_id).update(state="shipped")
    return Order.objects.get(pk=order_id).name


@app.job
async def thank(order_id: int) -> str:
    """The same with ``async``."""
    order = await Order.objects.aget(pk=order_id)
    return f"thank you for {order.name}"
