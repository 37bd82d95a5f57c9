"""Read models of the audit pages: what is shown, from bounded reads. No HTML, no web server."""
