"""The admin, the site's root leading to it, and what Prometheus asks for."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    path("", include("django_prometheus.urls")),
]
