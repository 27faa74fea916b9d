"""The report: one page that shows what a trace has, made of the files in this folder. Works offline.

`page.html` and `page.css` are the page, `page.*.js` what it does, `vendor/` the libraries that it draws with. What the
page shows is decided there, in the browser; the Python here reads and checks traces, and puts the pieces together.
"""

from distgrad.report.pages import page
from distgrad.report.read import read

__all__ = ["page", "read"]
