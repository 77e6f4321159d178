"""Metrics in OpenMetrics: what vLLM exports under its own names, and ours under ``nestedfp_``.

page.py        from families of samples to the text that is scraped; several pages made one. Pure
bulk.py        vLLM's statistics of every token, made cheap: a histogram takes its observations in bulk
requests.py    requests by what became of them, and their latencies from the arrival over HTTP
replica.py     the page of one replica
controller.py  the families of the controller, from its status and its decisions. Pure
cluster.py     the page of the whole application: the controller's and every replica's
"""
