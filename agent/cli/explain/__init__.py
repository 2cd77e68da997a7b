"""`rankwatch explain`: the story of a job's incident, from Prometheus and from evidence bundles.

``ask`` queries the incident and ``details`` its witnesses; ``bundles`` reads evidence summaries. ``incident`` finds
incidents, ``culprit`` the ranks that caused one. ``story`` renders the page as text or HTML.
"""
