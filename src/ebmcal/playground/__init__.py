"""The playground: a page beside the server, where a text is typed and looked at. `ebmcal playground`.

`looking` computes what the page shows, `routes` adds it to the app of `ebmcal.serve`, `page/` is what the browser gets:
plain HTML, CSS and JavaScript, from this server alone.
"""
