"""`rankwatch explain`: the story of a job's incident, from Prometheus and from evidence bundles.

``ask`` queries the incident, ``details`` its witnesses, ``bundles`` reads evidence summaries; ``incident`` and
``culprit`` judge, purely; ``story`` renders the page as text or HTML.
"""
