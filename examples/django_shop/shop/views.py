"""Orders over HTTP."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from ergon_framework.integrations.django import in_transaction, on_commit
from shop.jobs import ship, thank
from shop.models import Order


@csrf_exempt
def order(request: HttpRequest, name: str) -> JsonResponse:
    """The jobs are enqueued when the order is committed; if it fails, there are none."""
    with transaction.atomic():
        made = Order.objects.create(name=name)
        on_commit(ship).enqueue(made.pk)
        on_commit(thank).enqueue(made.pk)
        if "fail" in request.GET:
            raise RuntimeError("out of stock")
    return JsonResponse({"order": made.pk}, status=202)


@csrf_exempt
def order_safely(request: HttpRequest, name: str) -> JsonResponse:
    """The job is part of the transaction: whatever dies, both are there or neither is."""
    with transaction.atomic():
        made = Order.objects.create(name=name)
        job = in_transaction(ship).enqueue(made.pk)
        if "fail" in request.GET:
            raise RuntimeError("out of stock")
    return JsonResponse({"order": made.pk, "job": job}, status=202)


def status(request: HttpRequest, name: str) -> JsonResponse:
    """Where an order is."""
    return JsonResponse({"state": Order.objects.get(name=name).state})
