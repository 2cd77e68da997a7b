"""`rankwatch explain`: the story of a job's incident, from Prometheus and from evidence bundles.

``ask`` finds the incident, ``details`` what is known of it, ``bundles`` reads summaries of bundles; ``incident`` and
``culprit`` decide, purely; ``story`` makes the page of it, as text or HTML.
"""
