"""Metrics in OpenMetrics: what vLLM exports under its own names, and ours under ``nestedfp_``.

openmetrics.py          from families of samples to the text that is scraped; several pages made one. Pure
bulk.py                 vLLM's statistics of every token, made cheap: a histogram takes its observations in bulk
request_metrics.py      requests by what became of them, and their latencies from the arrival over HTTP
replica_page.py         the page of one replica
controller_families.py  the families of the controller, from its status. Pure
application_page.py     the page of the whole application: the controller's and every replica's
"""
