"""The Grafana dashboards; ``python -m grafana.build`` writes them into dashboards/."""
