"""The protocols as models in TLA+, checked by TLC, and the page that shows what breaks without each guard.

``Commit.tla`` is the commit protocol with its latch, ``Lease.tla`` what a holder may believe, ``Migration.tla`` the way
from one lock service to another, ``Rest.tla`` what becomes of the commits of REST clients. ``variants`` lists what is
checked, ``tlc`` checks one, ``page`` writes docs/model.md.
``python -m tests.proof.model`` (``make model``) does all of it.
"""
