"""The Grafana dashboards, made by ``python -m grafana.build`` into dashboards/."""
