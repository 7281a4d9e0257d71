"""Serves the console: pages that show topics, records, groups, the cluster, the bucket and access in a browser.

The entry class is `Console` (console.py), an ASGI application below /console. http/app.py loads it with its first request.

    browser ─▶ Console: session cookie, CSRF token ─▶ page (pages/) ─▶ ApiClient ─▶ HttpApp, the routes of the API ─▶ the broker
                                                        └▶ templates/, filled by rendering.py ─▶ HTML

Invariants: a page calls the API of this broker with the credentials of its reader, so it shows and changes nothing that the API
would refuse. Each page is complete without a script. The browser receives no script, style or data from another host, and no page
runs what a record holds: templates escape every value, and the content security policy forbids inline scripts.

Must not import: listeners other than http, the log, the metadata store.
"""
