"""What is served."""

from django.urls import path
from shop import views

urlpatterns = [
    path("orders/<str:name>", views.order),
    path("orders/<str:name>/safe", views.order_safely),
    path("status/<str:name>", views.status),
]
