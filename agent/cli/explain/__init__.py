"""`rankwatch explain`: the story of a job's incident, from Prometheus and from evidence bundles.

``ask`` queries the incident and ``details`` its witnesses; ``bundles`` reads evidence summaries. ``incident`` and
``culprit`` judge. ``story`` renders the page as text or HTML.
"""
