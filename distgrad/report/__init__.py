"""The report: a single HTML page that shows a trace, built from the files in this folder. Works offline.

`page.html` and `page.css` are the page, `page.*.js` its scripts, `vendor/` the drawing libraries. The scripts decide in
the browser what to show; the Python code reads and checks traces and assembles the page.
"""

from distgrad.report.pages import page
from distgrad.report.read import read

__all__ = ["page", "read"]
